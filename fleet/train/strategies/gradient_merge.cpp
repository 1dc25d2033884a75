// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategies/gradient_merge.h"

#include "fleet/core/text/format.h"
#include "fleet/optim/passes/gradient_merge.h"
#include "fleet/train/strategy_check.h"

namespace fleet {

const FieldList& fields_of(const GradientMergeConfigs*) {
  static const FieldList list{
      .area = "strategy",
      .fields = {
          field<&GradientMergeConfigs::k_steps>("k_steps",
                                                "micro-batches whose gradients make one update")
              .at_least(1)
              .in_unit("micro-batches"),
          field<&GradientMergeConfigs::avg>("avg", "average the gradients; off: sum them"),
          field<&GradientMergeConfigs::micro_batch_size>(
              "micro_batch_size", "split a batch into micro-batches of this size; 0: into k_steps")
              .at_least(0)
              .in_unit("samples")
              .beyond_guide(),
          field<&GradientMergeConfigs::drop_last>(
              "drop_last", "drop an incomplete window at the end of an epoch; off: update with it")
              .beyond_guide(),
      }};
  return list;
}

void check_gradient_merge(StrategyCheck& check) {
  const auto& strategy = check.strategy;
  const auto& configs = strategy.gradient_merge_configs;
  if (configs.k_steps > 1 && configs.micro_batch_size > 0) {
    check.problem(
        format("gradient_merge_configs: k_steps = {} says how many micro-batches a batch has, "
               "micro_batch_size = {} how large they are; give one of them",
               configs.k_steps, configs.micro_batch_size));
  }
  if (strategy.gradient_merge && configs.k_steps == 1 && configs.micro_batch_size == 0) {
    const bool is_planned = strategy.recompute && !strategy.recompute_configs.memory_budget.empty();
    check.remark(
        is_planned ? "gradient_merge leaves the size of micro-batches to the plan for memory_budget"
                   : "gradient_merge with k_steps = 1 merges nothing: every batch is an update");
  }
}

optim::GradientMergeOptions gradient_merge_options(const GradientMergeConfigs& configs) {
  return {.k_steps = configs.k_steps,
          .avg = configs.avg,
          .micro_batch_size = configs.micro_batch_size,
          .drop_last = configs.drop_last};
}

}  // namespace fleet
