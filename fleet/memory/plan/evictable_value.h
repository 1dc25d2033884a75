// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fleet/memory/plan/profile/step_profile.h"

namespace fleet::memory {

/// What one op made and autograd saved: the smallest thing that a plan can recompute selectively.
struct EvictableValue {
  int op = 0;              // that made it
  int64_t bytes = 0;       // of the blocks
  double seconds = 0;      // of `ops`, if everything else that is saved stays
  std::vector<int> ops;    // that have to be called, in order: those between it and saved values
  std::vector<int> saved;  // blocks
  int first_save = 0, last_save = 0;  // of any of them
  int freed = 0;                      // from this op of the forward on, only autograd holds it
};

/// All that can be recomputed at all, and are worth it by their size; by op.
std::vector<EvictableValue> evictable_values(const StepProfile& profile);

}  // namespace fleet::memory
