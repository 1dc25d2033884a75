// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/restart_policy.h"

#include "fleet/core/log.h"
#include "fleet/core/process/restart_needed.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kPause =
    1s;  // several ranks may fail for one reason: then none is restarted in vain
constexpr auto kRecent = 30s;

struct Others {
  size_t running = 0;
  size_t succeeded = 0;
};

Others others_of(WorkerGroup& workers, size_t local_rank) {
  Others others;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    if (rank == local_rank) continue;
    const auto& exit_status = workers.worker(rank).exit_status_seen();
    if (!exit_status) ++others.running;
    if (exit_status && exit_status->success()) ++others.succeeded;
  }
  return others;
}

}  // namespace

RestartPolicy::RestartPolicy(const Options& options, int max_restarts)
    : options_(options), max_restarts_(max_restarts) {}

bool RestartPolicy::continue_without(WorkerGroup& workers, size_t local_rank,
                                     const Failure& failure) {
  if (!options_.elastic || !failure.restartable || failure.stopped_by_user ||
      failure.exit_code == RestartNeeded::kExitCode) {
    return false;
  }
  const auto others = others_of(workers, local_rank);
  const bool is_restarted = times(local_rank) < max_restarts_ && others.succeeded == 0;
  const bool is_alone = others.running + others.succeeded == 0;
  if (is_alone && (options_.node_count() == 1 || !is_restarted)) return false;
  losses_.push_back({Clock::now(), failure});
  workers.fresh_line();
  if (is_restarted) {
    due_[local_rank] = Clock::now() + kPause;
    log::warn("fleetrun",
              format("{}: the others continue; it is restarted in {} s, {} of {}", failure.what,
                     kPause.count(), times(local_rank) + 1, max_restarts_));
  } else {
    log::warn("fleetrun", format("{}: the others continue without it, its log is {}", failure.what,
                                 failure.log));
  }
  return true;
}

std::vector<size_t> RestartPolicy::due(WorkerGroup& workers) {
  std::vector<size_t> ranks;
  for (const auto& [rank, when] : due_) {
    if (Clock::now() >= when) ranks.push_back(rank);
  }
  for (const size_t rank : ranks) due_.erase(rank);
  std::erase_if(ranks, [&](size_t rank) { return others_of(workers, rank).succeeded > 0; });
  for (const size_t rank : ranks) ++times_[rank];
  return ranks;
}

int RestartPolicy::times(size_t local_rank) const {
  const auto known = times_.find(local_rank);
  return known == times_.end() ? 0 : known->second;
}

bool RestartPolicy::is_waiting(WorkerGroup& workers) {
  return !due_.empty() && others_of(workers, due_.begin()->first).succeeded == 0;
}

std::vector<Failure> RestartPolicy::recent() const {
  std::vector<Failure> failures;
  for (const auto& loss : losses_) {
    if (Clock::now() - loss.when < kRecent) failures.push_back(loss.failure);
  }
  return failures;
}

}  // namespace fleet::launch
