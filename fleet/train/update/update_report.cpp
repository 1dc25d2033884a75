// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/update_report.h"

#include "fleet/comm/world.h"
#include "fleet/core/log.h"
#include "fleet/metrics/step_line.h"

namespace fleet {

void UpdateReport::count_own() {
  if (weight == 0) return;
  const double sum = own_loss * own_weight + loss * weight;
  own_weight += weight;
  own_loss = sum / own_weight;
}

void log_step(const UpdateReport& report) {
  log::plain(step_line({.worker_index = is_initialized() ? worker_index() : 0,
                        .step = report.call - 1,
                        .cost = report.loss,
                        .step_time_s = report.seconds,
                        .total_time_s = report.total_seconds}));
}

}  // namespace fleet
