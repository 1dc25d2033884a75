#include "fleet/optim/sgd.h"

namespace fleet::optim {

SGD::SGD(ModelHandle model, const SgdOptions& options)
    : Optimizer(std::move(model), {.lr = options.lr,
                                   .weight_decay = options.weight_decay,
                                   .max_grad_norm = options.max_grad_norm,
                                   .groups = options.groups}) {
  std::vector<std::string> problems;
  want_not_negative(problems, "weight_decay", options.weight_decay);
  want_not_negative(problems, "max_grad_norm", options.max_grad_norm);
  refuse("SGD", problems);
}

void SGD::apply(const Run& run) {
  const auto& of = settings_[run.span];
  ops::update_kernels().sgd({.gradient_scale = run.gradient_scale,
                             .weight_decay = static_cast<float>(of.weight_decay),
                             .lr = static_cast<float>(lr_ * of.lr_scale)},
                            run.value, run.gradient, run.length, run.low);
}

void SGD::apply(Whole& whole) {
  const auto& of = settings_[whole.span];
  whole.value.sub_((whole.gradient + whole.value * of.weight_decay) * (lr_ * of.lr_scale));
}

}  // namespace fleet::optim
