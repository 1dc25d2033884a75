// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/optim/optimizer.h"

namespace fleet::optim {

/// Momentum's rates.
struct MomentumOptions {
  double lr = 0.01;
  double momentum = 0.9;
  double weight_decay = 0;  // L2: added to the gradient
  bool use_nesterov = false;
  double max_grad_norm = 0;  // clip all gradients together to this norm; 0: do not
  std::vector<ParameterGroup> groups = {};
};

/// d = g + weight_decay * p;  v = momentum * v + d;  p -= lr * v, or lr * (d + momentum * v) with
/// Nesterov's look-ahead. The learning rate stays outside the velocity, as in torch.
class Momentum : public Optimizer {
 public:
  Momentum(ModelHandle model, const MomentumOptions& options = {});
  std::string_view name() const override { return "Momentum"; }
  const MomentumOptions& options() const { return options_; }

 private:
  std::vector<std::string> state_names() const override { return {"velocity"}; }
  void apply(const FusedSlice& slice) override;
  void apply(ParameterSlice& slice) override;

  MomentumOptions options_;
};

}  // namespace fleet::optim
