// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <torch/types.h>

#include "fleet/memory/plan/profile/step_profile.h"

namespace fleet::memory {

/// The profile of a forward and backward on meta tensors, which allocates nothing and counts the
/// bytes that real tensors would need. Times are computed from `rates`.
///
/// `BudgetAllocator::meta()` must be on before the model is made, so that parameters count; make
/// gradients and optimizer state beforehand too, since they are there in every step but the first.
///
///   const BudgetAllocatorScope counting(BudgetAllocator::meta());
///   auto model = applications::BertLarge({.device = torch::kMeta});
///   const auto profile = profile_on_meta([&] { return model.loss(batch); }, rates);
///   const auto plan = make_plan(profile, {.budget = int64_t{32} << 30});
StepProfile profile_on_meta(const std::function<torch::Tensor()>& loss, const MachineRates& rates);

}  // namespace fleet::memory
