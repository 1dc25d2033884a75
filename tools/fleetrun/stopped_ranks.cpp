// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/stopped_ranks.h"

#include <cstdlib>
#include <utility>

#include "fleet/core/log.h"
#include "fleet/core/process/process_state.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kArea = "fleetrun";
constexpr auto kStoppedCheckInterval = 1s;
constexpr auto kPeersFirst = 5s;       // their errors are more specific
constexpr double kUsualLimit_s = 600;  // of fleet::init

}  // namespace

void StoppedRanks::look(WorkerGroup& workers) {
  if (Clock::now() < next_check_) return;
  next_check_ = Clock::now() + kStoppedCheckInterval;
  const auto stopped = workers.stopped();
  if (!stopped.empty() || !since_.empty()) workers.fresh_line();
  std::map<size_t, Clock::time_point> now;
  for (const size_t rank : stopped) {
    const auto known = since_.find(rank);
    now[rank] = known != since_.end() ? known->second : Clock::now();
    if (known != since_.end()) continue;
    log::warn(kArea, format("{} {}; its peers wait for it for {} s (--peer_timeout_s)",
                            failures_.name_of(workers, rank), RankFailures::kIsStopped, limit_s_));
  }
  for (const auto& [rank, since] : since_)
    if (!now.contains(rank) && !workers.worker(rank).exit_status_seen())
      log::info(kArea, format("{} runs again", failures_.name_of(workers, rank)));
  since_ = std::move(now);
}

std::optional<size_t> StoppedRanks::too_long(const WorkerGroup& workers) const {
  const std::chrono::duration<double> limit(limit_s_);
  for (const auto& [rank, since] : since_) {
    const bool is_debugged = process_state(workers.worker(rank).pid()).letter == 't';
    if (!is_debugged && Clock::now() - since >= limit + kPeersFirst) return rank;
  }
  return std::nullopt;
}

Failure StoppedRanks::describe(const WorkerGroup& workers, size_t local_rank) const {
  return failures_.crashed(
      local_rank, format("{} {}, for more than {} s", failures_.name_of(workers, local_rank),
                         RankFailures::kIsStopped, limit_s_));
}

double peer_limit_s(const Options& options) {
  if (options.peer_timeout_s > 0) return options.peer_timeout_s;
  const char* text = std::getenv("FLEET_TIMEOUT_S");
  const double given = text != nullptr ? std::atof(text) : 0;
  return given > 0 ? given : kUsualLimit_s;
}

}  // namespace fleet::launch
