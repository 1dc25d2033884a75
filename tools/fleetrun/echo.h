#pragma once

#include <atomic>
#include <thread>

namespace fleet::launch {

/// Copies what a rank prints into its log and to the terminal, as it comes: carriage returns of
/// progress lines included. It has a thread of its own, so that a terminal that is held
/// (Ctrl-S, a pager) holds up that rank and not the supervision of all.
///
///   Echo echo(log_fd, STDOUT_FILENO);
///   Worker worker(program, environment, echo.writer());
///   echo.finish();
class Echo {
 public:
  /// Both descriptors stay the caller's.
  Echo(int log_fd, int terminal_fd);
  ~Echo();
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  /// The rank's standard output and error.
  int writer() const { return writer_; }

  /// Takes the rest, briefly: somebody who escaped may hold the pipe open for ever. Leaves the
  /// terminal at the start of a line.
  void finish();

  /// Waits, briefly, until what the rank has printed so far is in its log.
  void settle() const;
  /// Leaves the terminal at the start of a line, for somebody else's message.
  void fresh_line();

 private:
  void run(int log_fd, int terminal_fd);

  int reader_ = -1;
  int writer_ = -1;
  int stop_ = -1;
  int terminal_fd_;
  std::atomic<bool> in_line_{false};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace fleet::launch
