// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fleet/core/process/process_state.h"
#include "fleet/core/process/stop_request.h"

#include "tools/fleetrun/process/watchdog.h"
#include "tools/fleetrun/program.h"

namespace fleet::launch {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// How a process ended.
struct ExitStatus {
  int code = 0;    // of exit(), when no signal
  int signal = 0;  // 0: it exited by itself

  bool success() const { return code == 0 && signal == 0; }
  /// A crash, or a signal from outside: not the exception that a lost peer causes in the others,
  /// which may end in SIGABRT. While ranks are watched fleetrun itself sends them none.
  bool crashed() const;
  /// Stopped on request after saving (fleet::Stopped).
  bool stopped_in_order() const { return signal == 0 && code == Stopped::kExitCode; }
  /// Whether a restart may succeed: not after a wrong command line, or when a shell has not found
  /// its program.
  bool is_restartable() const { return signal != 0 || (code != 2 && code != 126 && code != 127); }
  /// As a shell reports it: 128 + number for a signal.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
  /// "exited with code 3" or "was ended by signal 11 (SIGSEGV, Segmentation fault)".
  std::string text() const;
};

/// One rank: a process in a session and process group of its own, which the kernel kills when the
/// launcher dies, and the watchdog everything it has started. Start it from the main thread: the
/// kernel watches the thread that forked.
///
/// A process that has ended stays a zombie until `reap()`, so that its pid, which is also its
/// process group's, is not reused while the group may still get signals.
///
///   Worker worker(program, {{"RANK", "0"}}, log_fd, watchdog);
///   worker.send(SIGTERM);
///   if (auto status = worker.exit_status()) std::puts(status->text().c_str());
class Worker {
 public:
  /// Throws StartError when the kernel refuses to execute the program.
  Worker(const Program& program, const Environment& environment, int output_fd, Watchdog& watchdog);

  pid_t pid() const { return pid_; }
  /// How it ended, once it has; does not wait.
  const std::optional<ExitStatus>& exit_status();
  /// What `exit_status()` has found so far.
  const std::optional<ExitStatus>& exit_status_seen() const { return exit_status_; }
  std::chrono::duration<double> lifetime() const;
  /// To everything in its group; continues a stopped one so that it can react.
  void send(int signal) const;
  /// SIGTERM after the loss of another rank: the rank ends at once, without saving.
  void send_group_broken() const;
  bool is_stopped() const { return !exit_status_ && process_state(pid_).is_stopped(); }
  void reap();

 private:
  Watchdog* watchdog_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point ended_;
  std::optional<ExitStatus> exit_status_;
};

/// The processes of these groups that are not zombies.
std::vector<pid_t> living_in(const std::vector<pid_t>& groups);

}  // namespace fleet::launch
