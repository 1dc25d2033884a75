// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "fleet/memory/offload/offload_file.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/step_profile.h"

namespace fleet::memory {

struct PlanOptions {
  int64_t budget = 0;  // counted bytes, parameters included
  // If it is known, values may be offloaded; see Offload.
  OffloadFile::Speed disk = {};
  // About so many; more find better plans and take longer to search.
  int stages = 200;
};

/// The quickest way to run the measured step within a budget: where to cut it, which segments to
/// recompute, and which values to recompute selectively. Empty if the budget is below the peak of
/// `least_memory`.
std::optional<Plan> make_plan(const StepProfile& profile, const PlanOptions& options);

/// Everything kept, and every stage recomputed: the two extremes.
Plan keep_everything(const StepProfile& profile);
Plan least_memory(const StepProfile& profile, const PlanOptions& options = {});

/// Every segment between checkpoints recomputed, but for what follows the last: what
/// `recompute_configs.checkpoints` does when it names them all.
Plan recompute_between_checkpoints(const StepProfile& profile);

/// Where the forward may be cut: about `stages` cut points, where the user's program holds least,
/// evenly spaced by saved bytes, and places behind costly ops that then need no replay.
std::vector<int> find_cuts(const StepProfile& profile, int stages);

}  // namespace fleet::memory
