#include "fleet/optim/momentum.h"

#include "fleet/core/format.h"

namespace fleet::optim {

Momentum::Momentum(ModelHandle model, const MomentumOptions& options)
    : Optimizer(std::move(model), options.lr), options_(options) {
  std::vector<std::string> problems;
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    problems.push_back(format("momentum {} is outside [0, 1)", options.momentum));
  }
  if (!(options.weight_decay >= 0)) {
    problems.push_back(format("weight_decay {} is negative", options.weight_decay));
  }
  if (options.use_nesterov && options.momentum == 0) {
    problems.emplace_back("use_nesterov looks ahead along a momentum, and momentum is 0");
  }
  refuse("Momentum", problems);
}

void Momentum::update(const torch::Tensor& values, const torch::Tensor& gradients,
                      std::vector<torch::Tensor>& state) {
  auto& velocity = state[0];
  const double wd = options_.weight_decay;
  velocity.mul_(options_.momentum).add_(gradients);
  if (wd != 0) velocity.add_(values, wd);
  if (options_.use_nesterov) {
    // p -= lr * (g + wd p + momentum v), with the p of before on the right-hand side.
    if (wd != 0) values.mul_(1 - lr_ * wd);
    values.add_(gradients, -lr_).add_(velocity, -lr_ * options_.momentum);
  } else {
    values.add_(velocity, -lr_);
  }
}

}  // namespace fleet::optim
