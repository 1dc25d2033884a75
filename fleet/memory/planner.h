#pragma once

#include <optional>
#include <vector>

#include "fleet/memory/plan.h"
#include "fleet/memory/step_profile.h"

namespace fleet::memory {

struct PlanOptions {
  int64_t budget = 0;  // counted bytes, with parameters and all
  // If it is known, values may leave for a file; see Offload.
  OffloadFile::Speed disk = {};
  // About so many; more find better plans and take longer to search.
  int stages = 200;
};

/// The quickest way to run the step that was measured within a budget: where to cut it, which
/// segments to recompute, and which values to rebuild one by one. Empty when the budget is below
/// what `least_memory` says.
std::optional<Plan> make_plan(const StepProfile& profile, const PlanOptions& options);

/// Everything kept, and every stage recomputed: the two ends of what a plan can do.
Plan keep_everything(const StepProfile& profile);
Plan least_memory(const StepProfile& profile, const PlanOptions& options = {});

/// Every segment between checkpoints recomputed, but for what follows the last: what
/// `recompute_configs.checkpoints` does when it names them all.
Plan recompute_between_checkpoints(const StepProfile& profile);

/// Where the forward may be cut: places where the user's program holds least, about `stages` of
/// them at equal shares of what is saved, and those that spare a costly op its replay.
std::vector<int> find_cuts(const StepProfile& profile, int stages);

}  // namespace fleet::memory
