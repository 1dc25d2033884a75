// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/memory/allocator/memory_counter.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/step_profile.h"

namespace fleet::memory {

/// "a micro-batch of 16 samples", or without the number if it is not known.
std::string micro_batch_text(int64_t samples);

/// A plan for a micro-batch, in one line.
std::string plan_text(int64_t samples, int64_t budget, const Plan& plan);

/// "parameters 9.69 MiB, gradients 9.69 MiB, 2 more 0.10 MiB": `bytes` by allocation tag.
std::string tags_text(const std::vector<MemoryCounter::TagUse>& tags, int64_t bytes);

/// A step that was measured without a plan.
struct MeasuredStep {
  const StepProfile& profile;
  int64_t samples = 0;                                  // 0: not known
  const std::vector<MemoryCounter::TagUse>& base_tags;  // live before the forward
};

/// No plan keeps the step within `budget`; `least` is the plan that takes the least memory, and
/// `least_budget` the budget that it needs.
UsageError too_small_error(const MeasuredStep& step, int64_t budget, const Plan& least,
                           int64_t least_budget);

/// What plain training takes, and what plans for fractions of it would cost in time.
std::string plain_text(const MeasuredStep& step);

}  // namespace fleet::memory
