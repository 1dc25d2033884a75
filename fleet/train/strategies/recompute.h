// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fleet/core/options/options.h"

namespace fleet {

struct StrategyCheck;

/// Recomputation, offload and memory budgets: docs/strategies/recompute.md. MemoryStrategy acts on
/// it.
struct RecomputeConfigs {
  std::vector<std::string> checkpoints = {};
  bool enable_offload = false;
  std::vector<int64_t> checkpoint_shape = {};

  std::string memory_budget = {};  ///< "12GiB", "60%", "50% of plain": the cuts are searched for
  bool plan_only = false;          ///< says the plan once it is made, and ends the program

  bool operator==(const RecomputeConfigs&) const = default;
};
const FieldList& fields_of(const RecomputeConfigs*);

void check_recompute(StrategyCheck& check);

}  // namespace fleet
