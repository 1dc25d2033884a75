// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fleet/core/options/options.h"

namespace fleet {

struct StrategyCheck;

namespace optim {
struct GradientMergeOptions;
}

/// Gradient accumulation: docs/strategies/gradient_merge.md. optim::GradientMerge acts on it.
struct GradientMergeConfigs {
  int k_steps = 1;
  bool avg = true;

  int64_t micro_batch_size = 0;  ///< 0: the batch is split into k_steps
  bool drop_last = false;

  bool operator==(const GradientMergeConfigs&) const = default;
};
const FieldList& fields_of(const GradientMergeConfigs*);

void check_gradient_merge(StrategyCheck& check);

optim::GradientMergeOptions gradient_merge_options(const GradientMergeConfigs& configs);

}  // namespace fleet
