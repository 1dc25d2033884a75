// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/fleetrun/failure.h"
#include "tools/fleetrun/logs/log_folder_lock.h"
#include "tools/fleetrun/nodes/node_coordinator.h"
#include "tools/fleetrun/nodes/rendezvous.h"
#include "tools/fleetrun/options.h"
#include "tools/fleetrun/process/worker_group.h"
#include "tools/fleetrun/restart_backoff.h"
#include "tools/fleetrun/restart_policy.h"

namespace fleet::launch {

/// Starts the ranks of this node, watches them together with the launchers of the other nodes, and
/// ends or restarts all of them when one fails.
///
///   SignalInbox inbox;
///   Watchdog watchdog;
///   Launcher launcher(options, find_program(options.program, options.program_args), inbox,
///                     watchdog);
///   return launcher.run();
class Launcher {
 public:
  Launcher(const Options& options, Program program, SignalInbox& inbox, Watchdog& watchdog);

  /// Returns the exit code of the launcher.
  int run();

 private:
  /// Logs and limits, once all nodes are known. A failure is reported to the other nodes too.
  void prepare(comm::Store& store, NodeCoordinator& coordinator, int attempt);
  void report_no_start(NodeCoordinator& coordinator, const std::exception& error) const;
  /// Nothing when the ranks of all nodes succeeded.
  std::optional<Failure> run_attempt(NodeCoordinator& coordinator, int attempt);
  /// Until all nodes are ready to start together.
  std::optional<Failure> gather(NodeCoordinator& coordinator);
  /// Why the ranks have to be ended, and how.
  struct Stop {
    std::vector<Failure> failures;  // not empty
    TerminationPolicy termination;
  };
  /// Until success on all nodes (nothing), or a failure on any, and a moment more for failures that
  /// may explain it.
  std::optional<Stop> supervise(NodeCoordinator& coordinator, WorkerGroup& workers, int attempt);
  void restart_failed_ranks(RestartPolicy& restart_policy, WorkerGroup& workers, int attempt);
  /// The root cause that all nodes report.
  Failure agree(NodeCoordinator& coordinator) const;

  /// Pauses before a restart when attempts fail at once; on node 0 only, since the others wait for
  /// it. Returns the signal that ended it early.
  std::optional<int> back_off();
  /// Logs the wait for a lost node; a failure after the time limit.
  std::optional<Failure> wait_for_lost_node(const NodeCoordinator::State& state,
                                            std::chrono::duration<double> waited);
  Failure report_stop(NodeCoordinator& coordinator, int signal) const;
  /// Logs which ranks are stopped, and which run again.
  void check_stopped(WorkerGroup& workers);
  /// A rank that has been stopped for longer than its peers wait.
  std::optional<size_t> stopped_too_long(const WorkerGroup& workers) const;
  Failure describe_stopped(const WorkerGroup& workers, size_t local_rank) const;
  double peer_limit_s() const;
  /// How the ranks are ended after `failures`.
  Stop stop_after(std::vector<Failure> failures, const WorkerGroup& workers, int asked_by) const;

  /// Warns once that a log cannot be written.
  void warn_of_full_disk(WorkerGroup& workers);
  Failure describe(WorkerGroup& workers, size_t local_rank) const;
  Failure describe_left_in_order(const WorkerGroup& workers, size_t local_rank) const;
  std::string name_of(const WorkerGroup& workers, size_t local_rank) const;
  Failure stopped_by(int signal) const;
  void announce() const;
  std::vector<Environment> environments(int attempt) const;

  const Options options_;
  const Program program_;
  SignalInbox& inbox_;
  Watchdog& watchdog_;
  const std::string log_dir_;  // absolute
  std::optional<LogFolderLock> log_lock_;
  std::optional<WorkerLogs> logs_;  // from `prepare` on
  int max_restarts_ = 0;
  RestartBackoff pause_;
  std::map<size_t, std::chrono::steady_clock::time_point> stopped_since_;  // local ranks
  std::chrono::steady_clock::time_point next_check_;
  std::chrono::steady_clock::time_point next_log_;
  Cluster cluster_;
};

}  // namespace fleet::launch
