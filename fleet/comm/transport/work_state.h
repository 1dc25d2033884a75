// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "fleet/comm/communicator.h"
#include "fleet/comm/rendezvous/peer_watch.h"

namespace fleet::comm {

/// A collective in flight on any transport. `Communicator::begin` fills in what an error needs.
struct Work::State {
  virtual ~State() = default;
  /// Starts it; a no-op where the transport has already started it.
  virtual void launch() {}
  /// Blocks until complete; throws on failure.
  virtual void block() = 0;
  virtual bool is_done() const = 0;

  /// Runs `work`; what it throws becomes an Error with the call and the rank that failed.
  template <typename F>
  void guarded(F&& work) const;
  [[noreturn]] void fail(const std::string& reason) const;

  std::string what;
  std::chrono::system_clock::time_point since;
  std::chrono::milliseconds timeout{};
  int rank = 0;
  std::string group;
  uint64_t number = 0;  // among the group's calls
  std::shared_ptr<PeerWatch> watch;
};

}  // namespace fleet::comm
