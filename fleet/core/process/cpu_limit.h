// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace fleet {

/// How many cores' worth of time the control groups of this process leave it, and which says so.
struct CpuLimit {
  double cores = 0;
  std::string source;  // "control group /docker/abc"
};

/// The smallest quota of every control group from the process's own to the root: cpu.max (version
/// 2), cpu.cfs_quota_us (version 1); nothing where none has one. More threads than this are stopped
/// for the rest of each period, all of them, and a parallel loop waits for the last.
///
/// `root`: where /proc and /sys are, for tests.
std::optional<CpuLimit> cpu_limit(const std::string& root = "/");

}  // namespace fleet
