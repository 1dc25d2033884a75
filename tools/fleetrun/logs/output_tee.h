// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "fleet/core/process/descriptor.h"

#include "tools/fleetrun/logs/worker_log.h"

namespace fleet::launch {

/// Copies the output of ranks, through a pipe for each, to their logs and, if there is one, to a
/// terminal: unchanged, carriage returns of progress lines included. A log that cannot be written
/// does not affect its rank. One descriptor per rank.
///
/// It has a thread of its own, so that a suspended terminal (Ctrl-S, a pager) blocks that rank and
/// not the supervision of all. The thread owns the readers; the caller owns the logs.
///
///   OutputTee tee(STDOUT_FILENO);
///   Descriptor output = tee.add(log);
///   Worker worker(program, environment, output.get(), watchdog);
///   output = Descriptor();
///   tee.finish();
class OutputTee {
 public:
  static constexpr int kNoTerminal = -1;

  explicit OutputTee(int terminal_fd);
  ~OutputTee();
  OutputTee(const OutputTee&) = delete;
  OutputTee& operator=(const OutputTee&) = delete;

  /// Standard output and error of a rank; the caller closes it once the rank has it.
  Descriptor add(WorkerLog& log);

  /// Reads the rest, briefly: a process that has left its group may keep a pipe open for ever.
  /// Leaves the terminal at the start of a line.
  void finish();

  /// Waits, briefly, until the output so far is in the logs.
  void flush();
  /// Leaves the terminal at the start of a line, for another message.
  void fresh_line();

 private:
  struct Source {
    Descriptor reader;
    WorkerLog* log;
  };

  void run();
  /// Reads once from each readable source; closes those at their end.
  void take(std::vector<Source>& sources, int timeout_ms);
  void show(std::string_view text, const WorkerLog& log);
  void wake();

  const int terminal_fd_;
  Descriptor wake_event_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Source> added_;
  uint64_t asked_ = 0;   // calls of flush()
  uint64_t served_ = 0;  // those that the thread has answered
  bool finishing_ = false;
  bool stop_ = false;
  bool ended_ = false;
  bool in_line_ = false;

  bool terminal_open_ = true;  // this and the next are the thread's only
  bool has_warned_ = false;    // that the terminal cannot be written
  std::thread thread_;
};

}  // namespace fleet::launch
