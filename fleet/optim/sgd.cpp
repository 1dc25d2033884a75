#include "fleet/optim/sgd.h"

#include "fleet/core/format.h"

namespace fleet::optim {

SGD::SGD(ModelHandle model, const SgdOptions& options)
    : Optimizer(std::move(model), options.lr), options_(options) {
  std::vector<std::string> problems;
  if (!(options.weight_decay >= 0)) {
    problems.push_back(format("weight_decay {} is negative", options.weight_decay));
  }
  refuse("SGD", problems);
}

void SGD::update(const torch::Tensor& values, const torch::Tensor& gradients,
                 std::vector<torch::Tensor>&) {
  if (options_.weight_decay != 0) values.mul_(1 - lr_ * options_.weight_decay);
  values.add_(gradients, -lr_);
}

}  // namespace fleet::optim
