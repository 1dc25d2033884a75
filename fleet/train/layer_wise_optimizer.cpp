// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/layer_wise_optimizer.h"

#include "fleet/core/error.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"

namespace fleet {
namespace {

std::unique_ptr<optim::Optimizer> lars_of(const optim::Momentum& momentum,
                                          const LarsConfigs& configs) {
  const auto& own = momentum.options();
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

std::unique_ptr<optim::Optimizer> lamb_of(const optim::Adam& adam, LambConfigs& configs) {
  const auto& own = adam.options();
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

}  // namespace

std::unique_ptr<optim::Optimizer> layer_wise_optimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                                       DistributedStrategy& strategy) {
  if (!strategy.lars && !strategy.lamb) return optimizer;
  auto made = strategy.lars
                  ? lars_of(dynamic_cast<const optim::Momentum&>(*optimizer), strategy.lars_configs)
                  : lamb_of(dynamic_cast<const optim::Adam&>(*optimizer), strategy.lamb_configs);
  made->set_lr(optimizer->lr());
  return made;
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

double own_weight_decay(const optim::Optimizer& optimizer) {
  if (const auto* momentum = dynamic_cast<const optim::Momentum*>(&optimizer)) {
    return momentum->options().weight_decay;
  }
  if (const auto* adam = dynamic_cast<const optim::Adam*>(&optimizer)) {
    return adam->options().weight_decay;
  }
  return 0;
}

}  // namespace fleet
