// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategies/recompute.h"

#include <set>

#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_amount.h"
#include "fleet/train/strategy_check.h"

namespace fleet {

const FieldList& fields_of(const RecomputeConfigs*) {
  static const FieldList list{
      .area = "strategy",
      .fields =
          {
              field<&RecomputeConfigs::checkpoints>("checkpoints",
                                                    "names of the tensors at which the net is cut"),
              field<&RecomputeConfigs::enable_offload>("enable_offload",
                                                       "offload checkpoints until backward"),
              field<&RecomputeConfigs::checkpoint_shape>(
                  "checkpoint_shape", "shape of a checkpoint; optional, checked if given")
                  .at_least(1),
              field<&RecomputeConfigs::memory_budget>(
                  "memory_budget",
                  "find the cuts for so much memory: 12GiB, 60% of what this rank may have, or "
                  "\"50% of plain\" training")
                  .beyond_guide(),
              field<&RecomputeConfigs::plan_only>(
                  "plan_only",
                  "print the plan for memory_budget, or what plain training takes, and end")
                  .beyond_guide(),
          },
      .absent = {
          {"enable_tuning", "Paddle's; give a memory_budget, and Fleet searches the cuts"},
          {"refined_ops_patterns", "Paddle's, for patterns of its graph; name checkpoints"},
      }};
  return list;
}

void check_recompute(StrategyCheck& check) {
  const auto& strategy = check.strategy;
  const auto& configs = strategy.recompute_configs;
  const bool named = !configs.checkpoints.empty();
  const bool searched = !configs.memory_budget.empty();
  if (strategy.recompute && !named && !searched && !configs.plan_only) {
    check.problem(
        "recompute has nowhere to cut the net: name tensors in recompute_configs.checkpoints, "
        "or give recompute_configs.memory_budget and the cuts are searched for");
  }
  if (named && searched) {
    check.problem(
        "recompute_configs.checkpoints says where to cut, recompute_configs.memory_budget "
        "asks to search for it; give one of them");
  }
  if (searched && !memory::BudgetAmount::parse(configs.memory_budget)) {
    check.problem(format("recompute_configs.memory_budget: '{}' is no amount of memory; {}",
                         configs.memory_budget,
                         memory::BudgetAmount::fix_for(configs.memory_budget)));
  }
  if (configs.enable_offload && !strategy.recompute) {
    check.problem(
        "recompute_configs.enable_offload offloads checkpoints, and without recompute there are "
        "none; switch recompute on too");
  }
  if (!configs.checkpoint_shape.empty() && strategy.recompute && !configs.enable_offload) {
    check.remark("recompute_configs.checkpoint_shape is only used with enable_offload");
  }
  std::set<std::string> seen;
  for (const auto& name : configs.checkpoints) {
    if (!seen.insert(name).second) {
      check.problem(format("recompute_configs.checkpoints: '{}' is named twice", name));
    }
  }
}

}  // namespace fleet
