#pragma once

#include <sys/types.h>

namespace fleet::launch {

/// A small process that outlives the launcher only to clean up behind it. When fleetrun is killed
/// with SIGKILL the kernel ends the ranks (PR_SET_PDEATHSIG), but not what the ranks have started;
/// the watchdog sees its pipe close and kills the process groups that are still on its list.
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

  /// One system call, so that a child may enter itself between fork and exec: what it starts is
  /// then covered from its first instruction on.
  void watch(pid_t group);
  /// Call before the leader of the group is reaped: its number may be another's afterwards.
  void forget(pid_t group);

 private:
  int pipe_ = -1;
  pid_t pid_ = -1;
};

}  // namespace fleet::launch
