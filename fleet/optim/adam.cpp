#include "fleet/optim/adam.h"

#include <cmath>

#include "fleet/core/format.h"

namespace fleet::optim {

Adam::Adam(ModelHandle model, const AdamOptions& options)
    : Optimizer(std::move(model), options.lr), options_(options) {
  std::vector<std::string> problems;
  const auto unit = [&](const char* what, double value) {
    if (!(value >= 0 && value < 1))
      problems.push_back(format("{} {} is outside [0, 1)", what, value));
  };
  unit("beta1", options.beta1);
  unit("beta2", options.beta2);
  if (!(options.epsilon > 0))
    problems.push_back(format("epsilon {} is not above 0", options.epsilon));
  if (!(options.weight_decay >= 0)) {
    problems.push_back(format("weight_decay {} is negative", options.weight_decay));
  }
  refuse("Adam", problems);
}

void Adam::update(const torch::Tensor& values, const torch::Tensor& gradients,
                  std::vector<torch::Tensor>& state) {
  auto& moment1 = state[0];
  auto& moment2 = state[1];
  const auto gradient = options_.weight_decay != 0
                            ? gradients.to(moment1.scalar_type()).add(values, options_.weight_decay)
                            : gradients.to(moment1.scalar_type());
  const auto t = static_cast<double>(steps_);
  const double correction1 = 1 - std::pow(options_.beta1, t);
  const double correction2 = 1 - std::pow(options_.beta2, t);
  moment1.mul_(options_.beta1).add_(gradient, 1 - options_.beta1);
  moment2.mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
  const auto denominator = moment2.sqrt().div_(std::sqrt(correction2)).add_(options_.epsilon);
  values.sub_(moment1.div(denominator).mul_(lr_ / correction1));
}

}  // namespace fleet::optim
