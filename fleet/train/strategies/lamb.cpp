// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategies/lamb.h"

#include "fleet/core/text/format.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/lamb.h"
#include "fleet/train/strategy_check.h"
#include "fleet/train/update/training_stack.h"
#include "fleet/train/update/trust_ratio_log.h"

namespace fleet {
namespace {

void check_lamb_over_adamw(StrategyCheck& check) {
  const double own = check.context.weight_decay;
  const double configured = check.strategy.lamb_configs.lamb_weight_decay;
  switch (lamb_decay(own, check.strategy.lamb_configs)) {
    case LambDecay::kAdamW:
      check.remark(format("lamb takes over AdamW's weight_decay of {}", own));
      break;
    case LambDecay::kConfigs:
      check.remark(
          format("lamb decays by lamb_weight_decay = {}; AdamW's default of {} is not in force",
                 configured, own));
      break;
    case LambDecay::kConflict:
      check.problem(
          format("AdamW's weight_decay is {} and lamb_configs.lamb_weight_decay is {}; LAMB has "
                 "one decay: set one of them",
                 own, configured));
  }
}

}  // namespace

const FieldList& fields_of(const LambConfigs*) {
  static const FieldList list{
      .area = "strategy",
      .fields = {
          field<&LambConfigs::lamb_weight_decay>("lamb_weight_decay", "weight decay").at_least(0),
          field<&LambConfigs::exclude_from_weight_decay>(
              "exclude_from_weight_decay",
              "substrings of names of parameters without weight decay"),
          field<&LambConfigs::rule>("rule", "variant of LAMB")
              .one_of(optim::lamb_rule_names())
              .beyond_guide(),
          field<&LambConfigs::log_every>("log_every",
                                         "updates between two logs of the trust ratios; 0: never")
              .at_least(0)
              .in_unit("updates")
              .beyond_guide(),
      }};
  return list;
}

void check_lamb(StrategyCheck& check) {
  const auto& optimizer = check.context.optimizer_name;
  if (!check.strategy.lamb || optimizer.empty()) return;
  if (optimizer != "Adam" && optimizer != "AdamW") {
    check.problem(
        format("lamb is built on Adam or AdamW, but the optimizer is {}; use one of those with "
               "its lr and betas, or switch lamb off",
               optimizer));
  }
  if (optimizer == "AdamW") {
    check_lamb_over_adamw(check);
  } else if (check.context.weight_decay != 0) {
    check.problem(
        format("{}'s own weight_decay of {} would be added to lamb_weight_decay; set it to 0 and "
               "give lamb_configs.lamb_weight_decay",
               optimizer, check.context.weight_decay));
  }
}

std::unique_ptr<optim::Optimizer> lamb_over(const optim::Optimizer& adam, LambConfigs& configs) {
  const auto& own = dynamic_cast<const optim::Adam&>(adam).options();
  double decay = configs.lamb_weight_decay;
  const bool is_adamw = dynamic_cast<const optim::AdamW*>(&adam) != nullptr;
  if (is_adamw && lamb_decay(own.weight_decay, configs) == LambDecay::kAdamW) {
    decay = own.weight_decay;
    configs.lamb_weight_decay = static_cast<float>(decay);
  }
  return std::make_unique<optim::Lamb>(
      adam.model(),
      optim::LambOptions{.lr = own.lr,
                         .beta1 = own.beta1,
                         .beta2 = own.beta2,
                         .epsilon = own.epsilon,
                         .lamb_weight_decay = decay,
                         .exclude_from_weight_decay = configs.exclude_from_weight_decay,
                         .max_grad_norm = own.max_grad_norm,
                         .rule = optim::lamb_rule(configs.rule),
                         .groups = own.groups});
}

LambDecay lamb_decay(double adamw_weight_decay, const LambConfigs& configs) {
  const LambConfigs defaults;
  const optim::AdamWOptions adamw_defaults;
  if (configs.lamb_weight_decay == defaults.lamb_weight_decay ||
      configs.lamb_weight_decay == static_cast<float>(adamw_weight_decay)) {
    return LambDecay::kAdamW;
  }
  return adamw_weight_decay == adamw_defaults.weight_decay ? LambDecay::kConfigs
                                                           : LambDecay::kConflict;
}

std::unique_ptr<UpdateHook> make_lamb_log(TrainingStack& stack) {
  const auto& strategy = stack.strategy;
  if (!strategy.lamb || strategy.lamb_configs.log_every == 0) return nullptr;
  return std::make_unique<TrustRatioLog>(
      *stack.optimizer,
      TrustRatioLogOptions{
          .area = "lamb", .every = strategy.lamb_configs.log_every, .update_norm = "u"});
}

}  // namespace fleet
