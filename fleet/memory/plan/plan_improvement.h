// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fleet/memory/plan/evictable_value.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/step_profile.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"

namespace fleet::memory {

/// Makes plans quicker within their budget, value by value: some are kept again, others recomputed
/// selectively instead, and segments are no longer recomputed as a whole. Every step is judged by
/// the simulation of the whole plan, which knows what the search for a plan neglects: when memory
/// is short, and what segments do to each other.
///
/// The number of simulations is bounded by `kWork` ops in all, so that the result depends on the
/// profile alone.
///
///   PlanImprovement improvement(profile, simulation, budget);
///   const auto plan = improvement.improve(found);
class PlanImprovement {
 public:
  /// All must outlive it.
  PlanImprovement(const StepProfile& profile, const PlanSimulation& simulation,
                  const std::vector<EvictableValue>& values, int64_t budget);

  /// A plan that is no slower. One that takes more than the budget, such as that which keeps
  /// everything, is made to fit first: the cheapest values are recomputed selectively until the
  /// rest fits. Empty if that is not enough, or would take twice the time of plain training.
  std::optional<Plan> improve(const Plan& plan);
  /// Only made to fit.
  std::optional<Plan> fitted(const Plan& plan);
  /// One that takes as little as can be reached from this one, whatever the budget.
  Plan least(const Plan& plan);

 private:
  struct State;
  bool evaluate(State& state);
  State state_of(const Plan& plan);
  void set_recomputed(State& state) const;
  bool is_relief(const State& state, const EvictableValue& value) const;
  bool fit(State& state, size_t most, std::optional<size_t> without = {});
  bool keep_segments(State& state);
  bool exchange(State& state);
  std::vector<size_t> by_descending_cost(const State& state) const;
  int segment_of(const State& state, int op) const;

  const StepProfile& profile_;
  const PlanSimulation& simulation_;
  const std::vector<EvictableValue>& values_;
  int64_t budget_;
  int64_t work_ = 0;  // ops that may still be simulated
};

}  // namespace fleet::memory
