// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "tools/fleetrun/logs/worker_log.h"

namespace fleet::launch {

/// The logs of this node's ranks, by local rank.
///
///   WorkerLogs logs("log", first_rank, local_ranks, {.keep = 5});
///   logs[0].append("step 1\n");
///   if (const auto text = logs.new_write_error()) log::warn("fleetrun", *text);
class WorkerLogs {
 public:
  WorkerLogs(const std::filesystem::path& folder, int first_rank, int ranks,
             const WorkerLog::Options& options) {
    for (int rank = first_rank; rank < first_rank + ranks; ++rank)
      logs_.emplace_back(folder, rank, options);
  }

  size_t size() const { return logs_.size(); }
  WorkerLog& operator[](size_t local_rank) { return logs_[local_rank]; }
  const WorkerLog& operator[](size_t local_rank) const { return logs_[local_rank]; }

  /// A warning when something could not be written: the first time only.
  std::optional<std::string> new_write_error();
  /// How much is missing in total; nothing when the logs are complete.
  std::optional<std::string> missing() const;

 private:
  std::deque<WorkerLog> logs_;  // a log does not move
  bool has_warned_ = false;
};

}  // namespace fleet::launch
