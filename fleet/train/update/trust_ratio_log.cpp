// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/trust_ratio_log.h"

#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

namespace fleet {

void TrustRatioLog::after_update(const UpdateReport& report) {
  const auto updates = optimizer_.steps();
  if (!report.updated || updates % options_.every != 0) return;
  for (const auto& item : optimizer_.trust_ratios()) {
    log::info(options_.area, format("update {}: {} trust ratio {:.6g} (|p| {:.6g}, |{}| {:.6g})",
                                    updates, item.name, item.ratio, item.value_norm,
                                    options_.update_norm, item.update_norm));
  }
}

}  // namespace fleet
