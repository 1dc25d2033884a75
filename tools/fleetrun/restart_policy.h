// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <vector>

#include "tools/fleetrun/failure.h"
#include "tools/fleetrun/options.h"
#include "tools/fleetrun/process/worker_group.h"

namespace fleet::launch {

/// With --elastic: decides whether the others continue without a failed rank, and when that rank is
/// restarted.
///
///   RestartPolicy restart_policy(options, max_restarts);
///   if (!restart_policy.continue_without(workers, rank, failure)) ...;   // the job has failed
///   for (const auto rank : restart_policy.due(workers)) workers.restart(rank, ...);
class RestartPolicy {
 public:
  RestartPolicy(const Options& options, int max_restarts);

  /// False: the others cannot continue, or no rank is left.
  bool continue_without(WorkerGroup& workers, size_t local_rank, const Failure& failure);
  /// Ranks to restart now, unless the training is complete.
  std::vector<size_t> due(WorkerGroup& workers);
  /// Restarts of that rank so far.
  int times(size_t local_rank) const;
  /// Whether a rank has still to be restarted.
  bool is_waiting(WorkerGroup& workers);
  /// Failures of the last moments after which the others continued: one of them may be the root
  /// cause of a later one.
  std::vector<Failure> recent() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Loss {
    Clock::time_point when;
    Failure failure;
  };

  const Options& options_;
  int max_restarts_;
  std::map<size_t, int> times_;
  std::map<size_t, Clock::time_point> due_;
  std::vector<Loss> losses_;
};

}  // namespace fleet::launch
