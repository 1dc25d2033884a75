#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fleet/core/process_state.h"
#include "fleet/core/stop_request.h"

#include "tools/fleetrun/program.h"
#include "tools/fleetrun/watchdog.h"

namespace fleet::launch {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// How a process ended.
struct Ending {
  int code = 0;    // of exit(), when no signal
  int signal = 0;  // 0: it exited by itself

  bool success() const { return code == 0 && signal == 0; }
  /// A crash or a kill of its own, not the exception that a lost peer causes in the others.
  bool crashed() const;
  /// It was asked to stop, and did so in order (fleet::Stopped).
  bool stopped_in_order() const { return signal == 0 && code == Stopped::kExitCode; }
  /// Whether another start may end better: not after a wrong command line, or when a shell has not
  /// found its program.
  bool mendable() const { return signal != 0 || (code != 2 && code != 126 && code != 127); }
  /// As a shell reports it: 128 + number for a signal.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
  /// "exited with code 3" or "was ended by signal 11 (SIGSEGV, Segmentation fault)".
  std::string text() const;
};

/// One rank: a process in a session and process group of its own, which the kernel kills when the
/// launcher dies, and the watchdog everything it has started. Start it from the main thread: the
/// kernel watches the thread that forked.
///
/// A process that has ended stays a zombie until `reap()`, so that its number, which is also the
/// number of its group, cannot become another's while the group may still get signals.
///
///   Worker worker(program, {{"RANK", "0"}}, log_fd, watchdog);
///   worker.send(SIGTERM);
///   if (auto ending = worker.ending()) std::puts(ending->text().c_str());
class Worker {
 public:
  /// Throws StartError when the kernel refuses to execute the program.
  Worker(const Program& program, const Environment& environment, int output_fd, Watchdog& watchdog);

  pid_t pid() const { return pid_; }
  /// How it ended, once it has; does not wait.
  const std::optional<Ending>& ending();
  /// What `ending()` has found so far.
  const std::optional<Ending>& ending_seen() const { return ending_; }
  std::chrono::duration<double> lifetime() const;
  /// To everything in its group; wakes a stopped one so that it can obey.
  void send(int signal) const;
  /// SIGTERM after the loss of another rank: one that would save first ends at once.
  void send_broken() const;
  bool is_stopped() const { return !ending_ && process_state(pid_).is_stopped(); }
  void reap();

 private:
  Watchdog* watchdog_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point ended_;
  std::optional<Ending> ending_;
};

/// The processes of these groups that are not zombies.
std::vector<pid_t> living_in(const std::vector<pid_t>& groups);

}  // namespace fleet::launch
