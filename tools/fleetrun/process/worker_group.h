// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tools/fleetrun/logs/output_tee.h"
#include "tools/fleetrun/logs/worker_logs.h"
#include "tools/fleetrun/process/signals.h"
#include "tools/fleetrun/process/watchdog.h"
#include "tools/fleetrun/process/worker.h"

namespace fleet::launch {

/// How the ranks are ended.
struct TerminationPolicy {
  std::vector<int> signals;                // one after the other, spread over `grace`
  std::chrono::duration<double> grace{0};  // then SIGKILL
  bool group_is_broken = false;            // a rank is lost: no snapshot is possible
  int asked_by = 0;                        // the user's signal that is the reason, if any
};

/// All ranks of this node during one attempt: started together, ended together.
///
///   WorkerGroup workers(program, environments, logs, watchdog);
///   while (!workers.all_ended()) {
///     inbox.next(100ms);
///     for (const size_t rank : workers.new_failures()) ...;
///   }
///   workers.end({.signals = {SIGTERM}, .grace = 5s}, inbox);
class WorkerGroup {
 public:
  /// `environments` and `logs` by local rank. When one cannot be started, those already started are
  /// killed before the error is thrown. What the node's first rank prints also goes to standard
  /// output.
  WorkerGroup(const Program& program, const std::vector<Environment>& environments,
              WorkerLogs& logs, Watchdog& watchdog);
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  size_t size() const { return workers_.size(); }
  const Worker& worker(size_t local_rank) const { return workers_[local_rank]; }

  /// Local ranks that have ended with a failure since the last call.
  std::vector<size_t> new_failures();
  /// Whether `new_failures` has seen the exit status of every rank.
  bool all_ended() const;
  /// A new process for a rank that has ended.
  void restart(size_t local_rank, const Program& program, const Environment& environment);
  /// Leaves the terminal at the start of a line, for another message.
  void fresh_line() { shown_.fresh_line(); }
  /// Waits, briefly, until the output so far is in the logs.
  void flush_output();

  /// Local ranks that are stopped (SIGSTOP).
  std::vector<size_t> stopped() const;
  /// All remaining processes are stopped.
  bool none_runs();
  /// A rank, or what it has started, has a handler for that signal.
  bool any_handles(int signal) const;

  /// Ends what is left of every rank's process group; another signal from the user meanwhile leads
  /// to SIGKILL at once. Then the same for processes that have left the groups (setsid). Returns
  /// when none is left, and all output is in the logs.
  void end(const TerminationPolicy& termination, SignalInbox& inbox);

 private:
  bool anything_left();
  std::vector<pid_t> groups() const;
  void send(int signal, bool group_is_broken) const;
  void end_detached(std::chrono::duration<double> grace);
  void kill_and_reap();
  Worker start(size_t local_rank, const Program& program, const Environment& environment);

  WorkerLogs& logs_;
  Watchdog& watchdog_;
  OutputTee shown_;   // the node's first rank
  OutputTee others_;  // separate: a suspended terminal must not block all ranks
  std::vector<Worker> workers_;
  std::vector<bool> reported_;
};

}  // namespace fleet::launch
