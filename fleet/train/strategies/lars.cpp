// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategies/lars.h"

#include "fleet/core/text/format.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"
#include "fleet/train/strategy_check.h"
#include "fleet/train/update/training_stack.h"
#include "fleet/train/update/trust_ratio_log.h"

namespace fleet {

const FieldList& fields_of(const LarsConfigs*) {
  static const FieldList list{
      .area = "strategy",
      .fields = {
          field<&LarsConfigs::lars_coeff>("lars_coeff", "trust coefficient").above(0),
          field<&LarsConfigs::lars_weight_decay>("lars_weight_decay", "weight decay").at_least(0),
          field<&LarsConfigs::epsilon>("epsilon", "added to the denominator of the trust ratio")
              .at_least(0),
          field<&LarsConfigs::exclude_from_weight_decay>(
              "exclude_from_weight_decay",
              "substrings of names of parameters without weight decay"),
          field<&LarsConfigs::rule>("rule", "variant of LARS")
              .one_of(optim::lars_rule_names())
              .beyond_guide(),
          field<&LarsConfigs::log_every>("log_every",
                                         "updates between two logs of the trust ratios; 0: never")
              .at_least(0)
              .in_unit("updates")
              .beyond_guide(),
      }};
  return list;
}

void check_lars(StrategyCheck& check) {
  const auto& strategy = check.strategy;
  if (strategy.lars && strategy.lamb) {
    check.problem(
        "lars and lamb are two update rules for the same parameters; choose lars (over "
        "Momentum) or lamb (over Adam or AdamW)");
  }
  const auto& optimizer = check.context.optimizer_name;
  if (!strategy.lars || optimizer.empty()) return;
  if (optimizer != "Momentum") {
    check.problem(
        format("lars is built on Momentum, but the optimizer is {}; use Momentum with its lr "
               "and momentum, or switch lars off",
               optimizer));
  }
  if (check.context.weight_decay != 0) {
    check.problem(
        format("{}'s own weight_decay of {} would be added to lars_weight_decay; set it to 0 and "
               "give lars_configs.lars_weight_decay",
               optimizer, check.context.weight_decay));
  }
}

std::unique_ptr<optim::Optimizer> lars_over(const optim::Optimizer& momentum,
                                            const LarsConfigs& configs) {
  const auto& own = dynamic_cast<const optim::Momentum&>(momentum).options();
  return std::make_unique<optim::Lars>(
      momentum.model(),
      optim::LarsOptions{.lr = own.lr,
                         .momentum = own.momentum,
                         .lars_coeff = configs.lars_coeff,
                         .lars_weight_decay = configs.lars_weight_decay,
                         .epsilon = configs.epsilon,
                         .use_nesterov = own.use_nesterov,
                         .exclude_from_weight_decay = configs.exclude_from_weight_decay,
                         .max_grad_norm = own.max_grad_norm,
                         .rule = optim::lars_rule(configs.rule),
                         .groups = own.groups});
}

std::unique_ptr<UpdateHook> make_lars_log(TrainingStack& stack) {
  const auto& strategy = stack.strategy;
  if (!strategy.lars || strategy.lars_configs.log_every == 0) return nullptr;
  return std::make_unique<TrustRatioLog>(
      *stack.optimizer,
      TrustRatioLogOptions{
          .area = "lars", .every = strategy.lars_configs.log_every, .update_norm = "g"});
}

}  // namespace fleet
