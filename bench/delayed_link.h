// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace fleet::launch {
class TwoHosts;
}

namespace fleet::bench {

/// A second link between two hosts, 10.78.0.1 and 10.78.0.2, on which every packet arrives `delay`
/// after it was sent, as over a long way. Not every kernel can delay packets (netem), so they pass
/// through threads of this process, by way of TUN devices.
class DelayedLink {
 public:
  DelayedLink(const launch::TwoHosts& hosts, std::chrono::milliseconds delay);
  ~DelayedLink();
  DelayedLink(const DelayedLink&) = delete;
  DelayedLink& operator=(const DelayedLink&) = delete;

  /// Why there is no link; empty when there is.
  const std::string& refused() const { return refused_; }
  static std::string device(int host);

 private:
  void carry(int from, int to) const;

  std::chrono::milliseconds delay_;
  std::string refused_;
  std::vector<int> ends_;  // file descriptors
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_ = false;
};

}  // namespace fleet::bench
