// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "fleet/parallel/local_sgd.h"
#include "fleet/train/distributed_strategy.h"

namespace fleet {

/// What `outer`, `optimizer_state` and `formula` of the configs may be.
std::vector<std::string_view> outer_rule_names();
std::vector<std::string_view> state_at_sync_names();
std::vector<std::string_view> interval_formula_names();

/// Of `localsgd` or `adaptive_localsgd`, whichever is on, in a strategy that is resolved and
/// checked.
LocalSgdOptions local_sgd_options(const DistributedStrategy& strategy);

}  // namespace fleet
