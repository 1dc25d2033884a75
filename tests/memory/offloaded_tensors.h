// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include <torch/types.h>

#include "fleet/memory/offload/offload_file.h"

namespace fleet::memory::offload_test {

constexpr int64_t kMiB = int64_t{1} << 20;

inline torch::Tensor noise(int64_t bytes) {
  return torch::randint(0, 256, {bytes}, torch::kInt).to(torch::kByte);
}

/// Equal bits: NaNs too.
inline bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.dtype() == b.dtype() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// In tests that must not meet the forward rule.
inline OffloadFile::Ticket on_disk(OffloadFile& file, torch::Tensor tensor) {
  auto ticket = file.write(std::move(tensor));
  file.drain();
  return ticket;
}

/// The thread that makes it, for I/O threads that go on once it waits for them.
class Caller {
 public:
  /// The next thing that this thread does is to wait.
  void waits_now() { waits_ = true; }
  void until_asleep() const {
    while (!waits_ || !is_asleep()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  bool is_asleep() const {
    std::ifstream file("/proc/self/task/" + std::to_string(thread_) + "/stat");
    const std::string stat(std::istreambuf_iterator<char>(file), {});
    const auto after_name = stat.rfind(')');
    return after_name != stat.npos && stat.substr(after_name + 2, 1) == "S";
  }

  const pid_t thread_ = gettid();
  std::atomic<bool> waits_{false};
};

}  // namespace fleet::memory::offload_test
