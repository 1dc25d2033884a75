#pragma once

#include "fleet/optim/optimizer.h"

namespace fleet::optim {

struct SgdOptions {
  double lr = 0.01;
  double weight_decay = 0;  // L2: added to the gradient
};

/// p -= lr * (g + weight_decay * p)
class SGD : public Optimizer {
 public:
  SGD(ModelHandle model, const SgdOptions& options = {});
  std::string_view name() const override { return "SGD"; }

 private:
  std::vector<std::string> state_names() const override { return {}; }
  void update(const torch::Tensor& values, const torch::Tensor& gradients,
              std::vector<torch::Tensor>& state) override;

  SgdOptions options_;
};

}  // namespace fleet::optim
