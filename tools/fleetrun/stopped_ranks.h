// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>

#include "tools/fleetrun/failure.h"
#include "tools/fleetrun/options.h"
#include "tools/fleetrun/process/worker_group.h"
#include "tools/fleetrun/rank_failures.h"

namespace fleet::launch {

/// Watches for ranks that are stopped (SIGSTOP, a debugger), which the other ranks wait for.
///
///   StoppedRanks stopped(failures, peer_limit_s(options));
///   stopped.look(workers);   // every few milliseconds
///   if (const auto rank = stopped.too_long(workers)) ...
class StoppedRanks {
 public:
  /// `failures` must outlive it. `limit_s`: how long its peers wait for a rank.
  StoppedRanks(const RankFailures& failures, double limit_s)
      : failures_(failures), limit_s_(limit_s) {}

  /// Logs which ranks are stopped, and which run again; once a second at most.
  void look(WorkerGroup& workers);
  /// A rank that has been stopped for longer than its peers wait.
  std::optional<size_t> too_long(const WorkerGroup& workers) const;
  Failure describe(const WorkerGroup& workers, size_t local_rank) const;

 private:
  using Clock = std::chrono::steady_clock;

  const RankFailures& failures_;
  double limit_s_;
  std::map<size_t, Clock::time_point> since_;  // by local rank
  Clock::time_point next_check_;
};

/// `--peer_timeout_s`, else FLEET_TIMEOUT_S, else what fleet::init waits.
double peer_limit_s(const Options& options);

}  // namespace fleet::launch
