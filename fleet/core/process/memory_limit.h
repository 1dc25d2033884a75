// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace fleet {

/// How much memory the processes of this rank's group may take together, and what says so.
struct MemoryLimit {
  int64_t bytes = 0;
  std::string source;  // "this machine", "control group /slurm/job_7"
};

/// The smallest of the machine's memory and of the limits of every control group on the way from
/// the process's own to the root: memory.max and memory.high (version 2), memory.limit_in_bytes
/// (version 1). A group that lies outside of what is mounted here, as in a container, counts from
/// the root of the mount.
///
/// `root`: where /proc and /sys are, for tests.
MemoryLimit memory_limit(const std::string& root = "/");

}  // namespace fleet
