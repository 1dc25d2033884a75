// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategy_check.h"

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

// Of the switches that have no configs.
void check_communication(StrategyCheck& check) {
  const auto& strategy = check.strategy;
  const DistributedStrategy defaults;
  if (!strategy.fuse_all_reduce_ops) {
    if (strategy.fuse_grad_size_in_MB != defaults.fuse_grad_size_in_MB) {
      check.remark("fuse_grad_size_in_MB has no effect while fuse_all_reduce_ops is off");
    }
    if (strategy.last_comm_group_size_MB != defaults.last_comm_group_size_MB) {
      check.remark("last_comm_group_size_MB has no effect while fuse_all_reduce_ops is off");
    }
  }
  if (check.context.world_size > 1) return;
  if (strategy.fp16_allreduce) check.remark("fp16_allreduce has nothing to send on one rank");
  if (strategy.sync_batch_norm) check.remark("sync_batch_norm on one rank is plain batch norm");
}

void remark_unused_configs(StrategyCheck& check) {
  const auto& strategy = check.strategy;
  const DistributedStrategy defaults;
  for (const Field& field : fields_of(&strategy).fields) {
    const Field* configs = configs_of(field.name);
    if (!configs || std::get<bool>(field.get(&strategy))) continue;
    const auto values = leaves(configs->view(&strategy));
    const auto unset = leaves(configs->view(&defaults));
    for (size_t i = 0; i < values.size(); ++i) {
      const FieldValue value = values[i].value();
      if (value == unset[i].value()) continue;
      check.remark(format("{}.{} = {} has no effect while {} is off (on: {} = true, or --{})",
                          configs->name, values[i].path, to_text(value), field.name, field.name,
                          field.name));
    }
  }
}

}  // namespace

std::vector<std::string> check(const DistributedStrategy& strategy, const CheckContext& context) {
  const auto resolved = strategy.resolved();
  StrategyCheck check{.asked = strategy, .strategy = resolved.strategy, .context = context};
  check.problems = out_of_limits(strategy);
  check.remarks = resolved.notes;
  for (const auto& entry : strategies()) {
    if (entry.check) entry.check(check);
  }
  check_communication(check);
  remark_unused_configs(check);
  if (!check.problems.empty()) {
    throw UsageError::all("strategy", "this strategy cannot be used:", check.problems);
  }
  return check.remarks;
}

}  // namespace fleet
