// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/fleetrun/failure.h"
#include "tools/fleetrun/logs/worker_logs.h"
#include "tools/fleetrun/nodes/cluster.h"
#include "tools/fleetrun/process/worker_group.h"

namespace fleet::launch {

/// Says how ranks of this node failed, from their exit status and the end of their logs.
///
///   const RankFailures failures(cluster, logs, options.max_restarts > 0);
///   for (const size_t rank : workers.new_failures()) {
///     coordinator.report(failures.describe(workers, rank));
///   }
class RankFailures {
 public:
  static constexpr const char* kIsStopped = "is stopped (SIGSTOP or a debugger)";

  /// Both must outlive it.
  RankFailures(const Cluster& cluster, const WorkerLogs& logs, bool has_restarts)
      : cluster_(cluster), logs_(logs), has_restarts_(has_restarts) {}

  /// A rank that has ended.
  Failure describe(WorkerGroup& workers, size_t local_rank) const;
  /// One that still runs, and is to be ended because `what` is the matter with it.
  Failure crashed(size_t local_rank, std::string what) const;
  /// "rank 3 (pid 42, node 1 at 10.0.0.2)".
  std::string name_of(const WorkerGroup& workers, size_t local_rank) const;

 private:
  Failure left_in_order(const WorkerGroup& workers, size_t local_rank) const;

  const Cluster& cluster_;
  const WorkerLogs& logs_;
  bool has_restarts_;
};

}  // namespace fleet::launch
