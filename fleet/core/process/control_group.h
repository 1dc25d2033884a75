// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fleet {

/// A control group that limits this process: its own or one above it.
struct ControlGroup {
  int version = 2;               // of the hierarchy: 1 or 2
  std::filesystem::path folder;  // with its files, such as memory.max
  std::string name;              // "/slurm/job_7"
};

/// Every group from the process's own to the root that limits `controller` ("memory",
/// "cpu", "pids"), in both versions of hierarchies, as a machine may have both. A group that lies
/// outside of what is mounted here, as in a container, counts from the root of the mount.
///
/// `root`: where /proc and /sys are, for tests.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::string& root = "/");

}  // namespace fleet
