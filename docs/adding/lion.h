// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fleet/fleet.h>

namespace adding {

/// Settings of Lion; defaults as in the paper.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;   // decoupled: p shrinks by lr * weight_decay, whatever the gradient
  double max_grad_norm = 0;  // clip all gradients together to this norm; 0: do not
  std::vector<fleet::optim::ParameterGroup> groups = {};
};

/// Chen et al., arXiv 2302.06675: c = b1 m + (1-b1) g;  p -= lr * (sign(c) + weight_decay * p);
/// m = b2 m + (1-b2) g. One state tensor; every element moves by lr, so lr is 3 to 10 times smaller
/// than Adam's, and weight_decay as much larger.
///
///   auto optimizer = fleet::distributed_optimizer(adding::Lion(net, {.lr = 1e-4}), strategy);
class Lion : public fleet::optim::Optimizer {
 public:
  explicit Lion(fleet::ModelHandle model, const LionOptions& options = {});
  std::string_view name() const override { return "Lion"; }

 private:
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  void apply(const FusedSlice& slice) override;
  void apply(ParameterSlice& slice) override;

  LionOptions options_;
};

}  // namespace adding
