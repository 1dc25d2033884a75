// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/sgd.h"

#include "fleet/optim/option_checks.h"

namespace fleet::optim {

SGD::SGD(ModelHandle model, const SgdOptions& options)
    : Optimizer(std::move(model), {.lr = options.lr,
                                   .weight_decay = options.weight_decay,
                                   .max_grad_norm = options.max_grad_norm,
                                   .groups = options.groups}) {
  std::vector<std::string> problems;
  require_not_negative(problems, "weight_decay", options.weight_decay);
  require_not_negative(problems, "max_grad_norm", options.max_grad_norm);
  throw_if_any("SGD", problems);
}

void SGD::apply(const FusedSlice& slice) {
  const auto& of = settings_[slice.span];
  ops::update_kernels().sgd({.gradient_scale = slice.gradient_scale,
                             .weight_decay = static_cast<float>(of.weight_decay),
                             .lr = static_cast<float>(lr_ * of.lr_scale)},
                            slice.value, slice.gradient, slice.length, slice.low);
}

void SGD::apply(ParameterSlice& slice) {
  const auto& of = settings_[slice.span];
  slice.value.sub_((slice.gradient + slice.value * of.weight_decay) * (lr_ * of.lr_scale));
}

}  // namespace fleet::optim
