// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fleet::launch {

/// The control group above this process that has the least room for processes and threads.
struct PidsLimit {
  int64_t most = 0;   // pids.max
  int64_t used = 0;   // pids.current
  std::string group;  // "/kubepods/pod1"

  int64_t room() const { return most - used; }
};

/// Nothing where no group has a limit. `root`: where /proc and /sys are, for tests.
std::optional<PidsLimit> pids_limit(const std::string& root = "/");

}  // namespace fleet::launch
