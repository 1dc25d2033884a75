#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/memory/memory_counter.h"
#include "fleet/memory/plan.h"
#include "fleet/memory/step_profile.h"

namespace fleet::memory {

/// "a micro-batch of 16 samples", or without the number where nobody knows it.
std::string micro_batch_text(int64_t samples);

/// What a plan does to a micro-batch, in one line.
std::string plan_text(int64_t samples, int64_t budget, const Plan& plan);

/// "parameters 9.69 MiB, gradients 9.69 MiB, 2 more 0.10 MiB": who has `bytes`.
std::string owners_text(const std::vector<MemoryCounter::OwnerUse>& owners, int64_t bytes);

/// What a step measured without a plan has to say about memory.
struct MeasuredStep {
  const StepProfile& profile;
  int64_t samples = 0;                                      // 0: nobody knows
  const std::vector<MemoryCounter::OwnerUse>& base_owners;  // live before the forward
};

/// No plan holds the step within `budget`; `least` is the plan that takes the least memory, and
/// `least_budget` the one that would do.
Error too_small_error(const MeasuredStep& step, int64_t budget, const Plan& least,
                      int64_t least_budget);

/// What plain training takes, and what plans for shares of it would cost in time.
std::string plain_text(const MeasuredStep& step);

}  // namespace fleet::memory
