// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategies/amp.h"

#include <set>

#include "fleet/core/text/format.h"
#include "fleet/train/strategy_check.h"

namespace fleet {

const FieldList& fields_of(const AmpConfigs*) {
  static const FieldList list{
      .area = "strategy",
      .fields =
          {
              field<&AmpConfigs::init_loss_scaling>("init_loss_scaling", "initial loss scale")
                  .above(0),
              field<&AmpConfigs::incr_every_n_steps>(
                  "incr_every_n_steps", "the scale grows after so many updates without overflow")
                  .at_least(1)
                  .in_unit("updates"),
              field<&AmpConfigs::decr_every_n_nan_or_inf>(
                  "decr_every_n_nan_or_inf", "the scale shrinks after so many overflows in a row")
                  .at_least(1)
                  .in_unit("updates"),
              field<&AmpConfigs::incr_ratio>("incr_ratio", "factor by which the scale grows")
                  .above(1),
              field<&AmpConfigs::decr_ratio>("decr_ratio", "factor by which the scale shrinks")
                  .above(0)
                  .below(1),
              field<&AmpConfigs::use_dynamic_loss_scaling>(
                  "use_dynamic_loss_scaling",
                  "dynamic loss scale; off: it stays at init_loss_scaling"),
              field<&AmpConfigs::custom_white_list>("custom_white_list",
                                                    "further ops that run in low precision")
                  .beyond_guide(),
              field<&AmpConfigs::custom_black_list>("custom_black_list",
                                                    "further ops that stay in fp32")
                  .beyond_guide(),
              field<&AmpConfigs::use_pure_bf16>("use_pure_bf16",
                                                "bf16 parameters with fp32 masters")
                  .beyond_guide(),
              field<&AmpConfigs::dtype>("dtype", "the low precision")
                  .one_of({"bf16", "fp16"})
                  .beyond_guide(),
              field<&AmpConfigs::max_skips_in_a_row>("max_skips_in_a_row",
                                                     "stop after so many skipped updates in a row")
                  .at_least(1)
                  .in_unit("updates")
                  .beyond_guide(),
          },
      .absent = {
          {"custom_black_varnames",
           "Paddle's, for variables of its graph; name ops in custom_black_list"},
          {"use_pure_fp16", "Paddle's; Fleet keeps pure training to bf16: use_pure_bf16"},
          {"use_fp16_guard", "Paddle's, for use_pure_fp16, which Fleet does not have"},
          {"use_optimizer_fp16", "Paddle's; Fleet's optimizers keep their state in fp32"},
      }};
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
