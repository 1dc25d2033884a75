// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/rank_failures.h"

#include <csignal>
#include <cstring>
#include <utility>

#include "fleet/core/process/stop_request.h"
#include "fleet/core/text/format.h"

#include "tools/fleetrun/logs/log_tail.h"

namespace fleet::launch {

Failure RankFailures::describe(WorkerGroup& workers, size_t local_rank) const {
  workers.flush_output();
  const auto& worker = workers.worker(local_rank);
  const auto exit_status = *worker.exit_status_seen();
  if (exit_status.stopped_in_order()) return left_in_order(workers, local_rank);
  const auto& log = logs_[local_rank];
  auto what = format("{} {} after {:.1f} s", name_of(workers, local_rank), exit_status.text(),
                     worker.lifetime().count());
  if (exit_status.signal == SIGKILL)
    what += "; the kernel does that when memory runs out, see dmesg";
  if (exit_status.signal == SIGTERM || exit_status.signal == SIGINT)
    what += "; fleetrun did not send it";
  for (const size_t rank : workers.stopped())
    what += format("; {} {}", name_of(workers, rank), kIsStopped);
  if (!exit_status.is_restartable() && has_restarts_)
    what +=
        "; that code means a mistake in the command line or configuration, which a restart does "
        "not fix";
  return {.node = cluster_.node_rank,
          .what = std::move(what),
          .exit_code = exit_status.exit_code(),
          .crashed = exit_status.crashed(),
          .caused_by_peer = names_another_rank(last_error(log.end_of_output())),
          .restartable = exit_status.is_restartable(),
          .log = log.path(),
          .tail = log.tail(),
          .shown = local_rank == 0};
}

// All ranks stop together, and any may end first: the log of the signalled rank says so.
Failure RankFailures::left_in_order(const WorkerGroup& workers, size_t local_rank) const {
  size_t asked = local_rank;
  std::string by;
  bool is_known = false;
  for (size_t rank = 0; rank < logs_.size() && !is_known; ++rank) {
    const auto text = logs_[rank].end_of_output();
    const auto at = text.rfind(kAskedToStop);
    if (at == text.npos) continue;
    const auto behind = at + std::strlen(kAskedToStop);
    by = text.substr(behind, text.find('\n', behind) - behind);
    asked = rank;
    is_known = true;
  }
  return {.node = cluster_.node_rank,
          .what = format("{} was asked to stop and left in order after {:.1f} s{}",
                         name_of(workers, asked), workers.worker(asked).lifetime().count(), by),
          .exit_code = Stopped::kExitCode,
          .caused_by_peer = !is_known,
          .restartable = false,
          .stopped_by_user = true,
          .log = logs_[asked].path()};
}

Failure RankFailures::crashed(size_t local_rank, std::string what) const {
  return {.node = cluster_.node_rank,
          .what = std::move(what),
          .crashed = true,
          .log = logs_[local_rank].path(),
          .tail = logs_[local_rank].tail()};
}

std::string RankFailures::name_of(const WorkerGroup& workers, size_t local_rank) const {
  const auto place = cluster_.nodes.size() == 1
                         ? ""
                         : format(", node {} at {}", cluster_.node_rank, cluster_.own().address);
  return format("rank {} (pid {}{})", cluster_.first_rank() + static_cast<int>(local_rank),
                workers.worker(local_rank).pid(), place);
}

}  // namespace fleet::launch
