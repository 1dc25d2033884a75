// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategies/fast_ops.h"

#include <algorithm>

#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/ops/fast_ops.h"
#include "fleet/train/strategy_check.h"

namespace fleet {

const FieldList& fields_of(const FastOpsConfigs*) {
  static const FieldList list{
      .area = "strategy",
      .fields = {field<&FastOpsConfigs::exclude>("exclude",
                                                 "LibTorch's ops that are not replaced, by name")
                     .beyond_guide()}};
  return list;
}

void check_fast_ops(StrategyCheck& check) {
  const auto& strategy = check.strategy;
  const auto names = FastOps::op_names();
  for (const auto& name : strategy.fast_ops_configs.exclude) {
    if (std::ranges::find(names, name) != names.end()) continue;
    check.problem(format("fast_ops_configs: exclude names '{}', which is not replaced anyway{}",
                         name, did_you_mean(name, names)));
  }
  if (!strategy.fast_ops || !strategy.amp) return;
  for (const auto* const list :
       {&strategy.amp_configs.custom_white_list, &strategy.amp_configs.custom_black_list}) {
    for (const auto& name : *list) {
      if (std::ranges::find(names, name) == names.end()) continue;
      check.remark(
          format("fast_ops leaves {} to LibTorch: a list of amp says its precision", name));
    }
  }
}

FastOpsOptions fast_ops_options(const FastOpsConfigs& configs) {
  return {.exclude = configs.exclude};
}

}  // namespace fleet
