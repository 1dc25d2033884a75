// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/trust_ratio_log.h"

// The table of strategies can make this hook, which nothing calls here: its own source needs the
// optimizers.
namespace fleet {

void TrustRatioLog::after_update(const UpdateReport& /*report*/) {}

}  // namespace fleet
