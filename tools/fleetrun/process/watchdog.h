// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "fleet/core/process/descriptor.h"

namespace fleet::launch {

/// A small process that outlives the launcher to clean up after it. When fleetrun is killed
/// with SIGKILL the kernel ends the ranks (PR_SET_PDEATHSIG), but not what the ranks have started;
/// the watchdog sees its pipe close and kills the process groups that are still on its list, and
/// every process that carries its launch id (marked_processes.h), in whatever session it is.
///
/// Construct it before any thread starts: it is a fork without exec.
///
///   Watchdog watchdog;
///   Worker worker(program, environment, log_fd, watchdog);
class Watchdog {
 public:
  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// One system call, so that a child may register itself between fork and exec: what it starts is
  /// then covered from its first instruction on.
  void watch(pid_t group);
  /// Call before the leader of the group is reaped: its pid may be reused afterwards.
  void forget(pid_t group);

  /// What every rank gets as FLEET_LAUNCH_ID.
  const std::string& launch_id() const { return launch_id_; }

 private:
  const std::string launch_id_;
  Descriptor pipe_;
  pid_t pid_ = -1;
};

}  // namespace fleet::launch
