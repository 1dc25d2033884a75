// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/adam.h"

#include <cmath>

#include "fleet/core/text/format.h"
#include "fleet/optim/option_checks.h"

namespace fleet::optim {

Adam::Adam(ModelHandle model, const AdamOptions& options)
    : Adam("Adam", std::move(model), options, /*decoupled=*/false) {}

AdamW::AdamW(ModelHandle model, const AdamWOptions& options)
    : Adam("AdamW", std::move(model),
           {.lr = options.lr,
            .beta1 = options.beta1,
            .beta2 = options.beta2,
            .epsilon = options.epsilon,
            .weight_decay = options.weight_decay,
            .max_grad_norm = options.max_grad_norm,
            .groups = options.groups},
           /*decoupled=*/true) {}

Adam::Adam(std::string_view name, ModelHandle model, const AdamOptions& options, bool decoupled)
    : Optimizer(std::move(model), {.lr = options.lr,
                                   .weight_decay = options.weight_decay,
                                   .max_grad_norm = options.max_grad_norm,
                                   .groups = options.groups}),
      options_(options),
      decoupled_(decoupled) {
  std::vector<std::string> problems;
  require_unit_interval(problems, "beta1", options.beta1);
  require_unit_interval(problems, "beta2", options.beta2);
  if (!(options.epsilon > 0)) {
    problems.push_back(format("epsilon {} is not above 0", options.epsilon));
  }
  require_not_negative(problems, "weight_decay", options.weight_decay);
  require_not_negative(problems, "max_grad_norm", options.max_grad_norm);
  throw_if_any(name, problems);
}

void Adam::prepare() { corrections_.set(span_updates(), options_.beta1, options_.beta2); }

void Adam::apply(const FusedSlice& slice) {
  const auto& of = settings_[slice.span];
  const auto& correction = corrections_[slice.span];
  const double lr = lr_ * of.lr_scale;
  ops::update_kernels().adam(
      {.gradient_scale = slice.gradient_scale,
       .l2 = static_cast<float>(decoupled_ ? 0 : of.weight_decay),
       .decay_factor = static_cast<float>(decoupled_ ? 1 - lr * of.weight_decay : 1),
       .beta1 = static_cast<float>(options_.beta1),
       .beta2 = static_cast<float>(options_.beta2),
       .one_minus_beta1 = static_cast<float>(1 - options_.beta1),
       .one_minus_beta2 = static_cast<float>(1 - options_.beta2),
       .step = static_cast<float>(lr / correction.first),
       .root_correction = static_cast<float>(1 / std::sqrt(correction.second)),
       .epsilon = static_cast<float>(options_.epsilon)},
      slice.value, slice.gradient, slice.state[0], slice.state[1], slice.length, slice.low);
}

void Adam::apply(ParameterSlice& slice) {
  const auto& of = settings_[slice.span];
  const auto& correction = corrections_[slice.span];
  const double lr = lr_ * of.lr_scale;
  auto& moment1 = slice.state[0];
  auto& moment2 = slice.state[1];
  if (decoupled_) {
    slice.value.mul_(1 - lr * of.weight_decay);
  } else {
    slice.gradient.add_(slice.value, of.weight_decay);
  }
  moment1.mul_(options_.beta1).add_(slice.gradient, 1 - options_.beta1);
  moment2.mul_(options_.beta2).addcmul_(slice.gradient, slice.gradient, 1 - options_.beta2);
  const auto denominator = moment2.sqrt().div_(std::sqrt(correction.second)).add_(options_.epsilon);
  slice.value.addcdiv_(moment1, denominator, -lr / correction.first);
}

}  // namespace fleet::optim
