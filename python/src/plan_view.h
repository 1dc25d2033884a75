// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/step_profile.h"
#include "fleet/train/memory_budget.h"

namespace fleet::python {

/// A plan as Python shows it.
struct PlanView {
  std::shared_ptr<const memory::Plan> plan;
  std::shared_ptr<const memory::StepProfile> profile;

  /// Empty: there is none for so many samples.
  static std::optional<PlanView> of(const MemoryBudget& budget, int64_t samples);
  std::string text() const;
  std::string svg() const;
};

}  // namespace fleet::python
