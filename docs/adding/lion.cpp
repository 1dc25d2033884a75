// SPDX-License-Identifier: Apache-2.0
#include "docs/adding/lion.h"

#include "fleet/optim/option_checks.h"

namespace adding {

namespace optim = fleet::optim;

Lion::Lion(fleet::ModelHandle model, const LionOptions& options)
    : Optimizer(std::move(model), {.lr = options.lr,
                                   .weight_decay = options.weight_decay,
                                   .max_grad_norm = options.max_grad_norm,
                                   .groups = options.groups}),
      options_(options) {
  std::vector<std::string> problems;
  optim::require_unit_interval(problems, "beta1", options.beta1);
  optim::require_unit_interval(problems, "beta2", options.beta2);
  optim::require_not_negative(problems, "weight_decay", options.weight_decay);
  optim::require_not_negative(problems, "max_grad_norm", options.max_grad_norm);
  optim::throw_if_any("Lion", problems);
}

// Float on the CPU: one pass, on several threads at once, each with slices of its own.
void Lion::apply(const FusedSlice& slice) {
  const auto& settings = settings_[slice.span];
  const auto lr = static_cast<float>(lr_ * settings.lr_scale);
  const auto decay = static_cast<float>(settings.weight_decay);
  const auto beta1 = static_cast<float>(options_.beta1), one_minus_beta1 = 1 - beta1;
  const auto beta2 = static_cast<float>(options_.beta2), one_minus_beta2 = 1 - beta2;
  float* const momentum = slice.state[0];
  for (int64_t i = 0; i < slice.length; ++i) {
    const float gradient = slice.gradient[i] * slice.gradient_scale;
    const float c = beta1 * momentum[i] + one_minus_beta1 * gradient;
    const auto sign = static_cast<float>((c > 0) - (c < 0));
    slice.value[i] -= lr * (sign + decay * slice.value[i]);
    momentum[i] = beta2 * momentum[i] + one_minus_beta2 * gradient;
  }
  if (slice.low == nullptr) return;  // use_pure_bf16: the model computes with a rounded copy
  for (int64_t i = 0; i < slice.length; ++i) slice.low[i] = c10::BFloat16(slice.value[i]).x;
}

// Other types and devices: the same formula in ATen's ops.
void Lion::apply(ParameterSlice& slice) {
  const auto& settings = settings_[slice.span];
  auto& momentum = slice.state[0];
  const auto c = momentum * options_.beta1 + slice.gradient * (1 - options_.beta1);
  slice.value.sub_((c.sign() + slice.value * settings.weight_decay) * (lr_ * settings.lr_scale));
  momentum.mul_(options_.beta2).add_(slice.gradient, 1 - options_.beta2);
}

}  // namespace adding
