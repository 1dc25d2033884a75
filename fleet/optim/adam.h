#pragma once

#include "fleet/optim/optimizer.h"

namespace fleet::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // L2: added to the gradient
};

/// Kingma and Ba, arXiv 1412.6980: m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
/// p -= lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon).
class Adam : public Optimizer {
 public:
  Adam(ModelHandle model, const AdamOptions& options = {});
  std::string_view name() const override { return "Adam"; }
  const AdamOptions& options() const { return options_; }

 private:
  std::vector<std::string> state_names() const override { return {"moment1", "moment2"}; }
  void update(const torch::Tensor& values, const torch::Tensor& gradients,
              std::vector<torch::Tensor>& state) override;

  AdamOptions options_;
};

}  // namespace fleet::optim
