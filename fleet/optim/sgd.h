// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/optim/optimizer.h"

namespace fleet::optim {

/// SGD's rates.
struct SgdOptions {
  double lr = 0.01;
  double weight_decay = 0;   // L2: added to the gradient
  double max_grad_norm = 0;  // clip all gradients together to this norm; 0: do not
  std::vector<ParameterGroup> groups = {};
};

/// p -= lr * (g + weight_decay * p)
class SGD : public Optimizer {
 public:
  SGD(ModelHandle model, const SgdOptions& options = {});
  std::string_view name() const override { return "SGD"; }

 private:
  std::vector<std::string> state_names() const override { return {}; }
  void apply(const FusedSlice& slice) override;
  void apply(ParameterSlice& slice) override;
};

}  // namespace fleet::optim
