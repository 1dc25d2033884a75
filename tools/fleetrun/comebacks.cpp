#include "tools/fleetrun/comebacks.h"

#include "fleet/core/format.h"
#include "fleet/core/log.h"
#include "fleet/core/restart_needed.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kPause = 1s;  // several may fail for one reason: then nobody is started for nothing
constexpr auto kRecent = 30s;

struct Others {
  size_t running = 0;
  size_t succeeded = 0;
};

Others others_of(Crew& crew, size_t local_rank) {
  Others others;
  for (size_t rank = 0; rank < crew.size(); ++rank) {
    if (rank == local_rank) continue;
    const auto& ending = crew.worker(rank).ending_seen();
    if (!ending) ++others.running;
    if (ending && ending->success()) ++others.succeeded;
  }
  return others;
}

}  // namespace

Comebacks::Comebacks(const Options& options, int max_restarts)
    : options_(options), max_restarts_(max_restarts) {}

bool Comebacks::take(Crew& crew, size_t local_rank, const Failure& failure) {
  if (!options_.elastic || !failure.restartable || failure.stopped_by_user ||
      failure.exit_code == RestartNeeded::kExitCode) {
    return false;
  }
  const auto others = others_of(crew, local_rank);
  const bool comes_back = times(local_rank) < max_restarts_ && others.succeeded == 0;
  const bool is_alone = others.running + others.succeeded == 0;
  if (is_alone && (options_.node_count() == 1 || !comes_back)) return false;
  losses_.push_back({Clock::now(), failure});
  crew.echo().fresh_line();
  if (comes_back) {
    due_[local_rank] = Clock::now() + kPause;
    log::warn("fleetrun",
              format("{}: the others go on; it is started again in {} s, {} of {}", failure.what,
                     kPause.count(), times(local_rank) + 1, max_restarts_));
  } else {
    log::warn("fleetrun",
              format("{}: the others go on without it, its log is {}", failure.what, failure.log));
  }
  return true;
}

std::vector<size_t> Comebacks::due(Crew& crew) {
  std::vector<size_t> ranks;
  for (const auto& [rank, when] : due_) {
    if (Clock::now() >= when) ranks.push_back(rank);
  }
  for (const size_t rank : ranks) due_.erase(rank);
  std::erase_if(ranks, [&](size_t rank) { return others_of(crew, rank).succeeded > 0; });
  for (const size_t rank : ranks) ++times_[rank];
  return ranks;
}

int Comebacks::times(size_t local_rank) const {
  const auto known = times_.find(local_rank);
  return known == times_.end() ? 0 : known->second;
}

bool Comebacks::is_waiting(Crew& crew) {
  return !due_.empty() && others_of(crew, due_.begin()->first).succeeded == 0;
}

std::vector<Failure> Comebacks::recent() const {
  std::vector<Failure> failures;
  for (const auto& loss : losses_) {
    if (Clock::now() - loss.when < kRecent) failures.push_back(loss.failure);
  }
  return failures;
}

}  // namespace fleet::launch
