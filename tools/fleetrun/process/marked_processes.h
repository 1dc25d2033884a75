// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace fleet::launch {

/// The variable by which a launcher finds all processes that its ranks have started, in any process
/// group or session. A program that is to outlive the job unsets it.
inline constexpr const char* kLaunchId = "FLEET_LAUNCH_ID";

/// A unique value; below the one in this process's environment, so that a launcher that a rank has
/// started is found with its own processes.
std::string new_launch_id();

/// Processes of this user that have `launch_id`, or one below it, in their environment; zombies
/// have none.
std::vector<pid_t> marked_processes(const std::string& launch_id);

/// Signals those processes, each checked again: a pid may have been reused.
void signal_marked(const std::string& launch_id, int signal);

/// SIGKILL until none is left or the time is up: they may start others meanwhile.
void kill_marked(const std::string& launch_id, std::chrono::milliseconds limit);

}  // namespace fleet::launch
