// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategies/amp.h"

#include <set>
#include <utility>

#include "fleet/core/text/format.h"
#include "fleet/precision/loss_scale_fields.h"
#include "fleet/train/strategy_check.h"

namespace fleet {

const FieldList& fields_of(const AmpConfigs*) {
  using O = AmpConfigs;
  static const FieldList list = [] {
    FieldList made{
        .area = "strategy",
        .fields = loss_scale_fields<O>(),
        .absent = {
            {"custom_black_varnames",
             "Paddle's, for variables of its graph; name ops in custom_black_list"},
            {"use_pure_fp16", "Paddle's; Fleet keeps pure training to bf16: use_pure_bf16"},
            {"use_fp16_guard", "Paddle's, for use_pure_fp16, which Fleet does not have"},
            {"use_optimizer_fp16", "Paddle's; Fleet's optimizers keep their state in fp32"},
        }};
    const std::vector<Field> beyond = {
        field<&O::custom_white_list>("custom_white_list", "further ops that run in low precision"),
        field<&O::custom_black_list>("custom_black_list", "further ops that stay in fp32"),
        field<&O::use_pure_bf16>("use_pure_bf16", "bf16 parameters with fp32 masters"),
        field<&O::dtype>("dtype", "low-precision type").one_of({"bf16", "fp16"}),
        field<&O::max_skips_in_a_row>("max_skips_in_a_row",
                                      "skipped updates in a row after which training stops")
            .at_least(1)
            .in_unit("updates"),
    };
    for (auto one : beyond) made.fields.push_back(std::move(one).beyond_guide());
    return made;
  }();
  return list;
}

void check_amp(StrategyCheck& check) {
  const auto& strategy = check.strategy;
  const auto& configs = strategy.amp_configs;
  const std::set<std::string> white(configs.custom_white_list.begin(),
                                    configs.custom_white_list.end());
  for (const auto& op : configs.custom_black_list) {
    if (white.contains(op)) {
      check.problem(
          format("amp_configs: '{}' is in custom_white_list and in custom_black_list, so its "
                 "precision is not decided; take it out of one",
                 op));
    }
  }
  if (configs.use_pure_bf16 && configs.dtype == "fp16") {
    check.problem(
        "amp_configs: use_pure_bf16 keeps bf16 parameters, but dtype is fp16; set dtype to "
        "bf16");
  }
  if (strategy.amp && configs.dtype == "bf16") {
    const AmpConfigs defaults;
    if (configs.init_loss_scaling != defaults.init_loss_scaling ||
        configs.use_dynamic_loss_scaling != defaults.use_dynamic_loss_scaling) {
      check.remark(
          "amp_configs: the loss is scaled for fp16 only; bf16 has the range of fp32 and needs "
          "no loss scale");
    }
  }
}

}  // namespace fleet
