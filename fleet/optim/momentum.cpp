// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/momentum.h"

#include "fleet/optim/option_checks.h"

namespace fleet::optim {

Momentum::Momentum(ModelHandle model, const MomentumOptions& options)
    : Optimizer(std::move(model), {.lr = options.lr,
                                   .weight_decay = options.weight_decay,
                                   .max_grad_norm = options.max_grad_norm,
                                   .groups = options.groups}),
      options_(options) {
  std::vector<std::string> problems;
  require_unit_interval(problems, "momentum", options.momentum);
  require_not_negative(problems, "weight_decay", options.weight_decay);
  require_not_negative(problems, "max_grad_norm", options.max_grad_norm);
  if (options.use_nesterov && options.momentum == 0) {
    problems.emplace_back("use_nesterov looks ahead along a momentum, and momentum is 0");
  }
  throw_if_any("Momentum", problems);
}

void Momentum::apply(const FusedSlice& slice) {
  const auto& of = settings_[slice.span];
  ops::update_kernels().momentum({.gradient_scale = slice.gradient_scale,
                                  .weight_decay = static_cast<float>(of.weight_decay),
                                  .momentum = static_cast<float>(options_.momentum),
                                  .inner = 1,
                                  .outer = static_cast<float>(lr_ * of.lr_scale),
                                  .nesterov = options_.use_nesterov},
                                 slice.value, slice.gradient, slice.state[0], slice.length,
                                 slice.low);
}

void Momentum::apply(ParameterSlice& slice) {
  const auto& of = settings_[slice.span];
  const auto d = slice.gradient + slice.value * of.weight_decay;
  auto& velocity = slice.state[0];
  velocity.mul_(options_.momentum).add_(d);
  const auto direction = options_.use_nesterov ? d + velocity * options_.momentum : velocity;
  slice.value.sub_(direction * (lr_ * of.lr_scale));
}

}  // namespace fleet::optim
