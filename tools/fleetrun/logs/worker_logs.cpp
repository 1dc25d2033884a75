// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/logs/worker_logs.h"

#include "fleet/core/text/format.h"

namespace fleet::launch {

std::optional<std::string> WorkerLogs::new_write_error() {
  if (has_warned_) return std::nullopt;
  for (const auto& log : logs_) {
    const auto loss = log.loss();
    if (!loss) continue;
    has_warned_ = true;
    return format(
        "cannot write {} ({}): training continues; what ranks print now is missing from their logs "
        "until they can be written again",
        log.path(), loss->reason);
  }
  return std::nullopt;
}

std::optional<std::string> WorkerLogs::missing() const {
  std::string files;
  for (const auto& log : logs_) {
    const auto loss = log.loss();
    if (!loss || loss->bytes == 0) continue;
    files += format("{}{} lacks {} bytes ({})", files.empty() ? "" : ", ", log.path(), loss->bytes,
                    loss->reason);
  }
  if (files.empty()) return std::nullopt;
  return files;
}

}  // namespace fleet::launch
