// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/optim/optimizer.h"
#include "fleet/optim/passes/moment_corrections.h"

namespace fleet::optim {

/// Adam's rates; defaults as in torch.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;   // L2: added to the gradient
  double max_grad_norm = 0;  // clip all gradients together to this norm; 0: do not
  std::vector<ParameterGroup> groups = {};
};

/// Kingma and Ba, arXiv 1412.6980: m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
/// p -= lr * (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + epsilon), t being the parameter's own number of
/// updates.
class Adam : public Optimizer {
 public:
  Adam(ModelHandle model, const AdamOptions& options = {});
  std::string_view name() const override { return "Adam"; }
  const AdamOptions& options() const { return options_; }

 protected:
  Adam(std::string_view name, ModelHandle model, const AdamOptions& options, bool decoupled);

 private:
  std::vector<std::string> state_names() const override { return {"moment1", "moment2"}; }
  bool counts_updates() const override { return true; }
  void prepare() override;
  void apply(const FusedSlice& slice) override;
  void apply(ParameterSlice& slice) override;

  AdamOptions options_;
  bool decoupled_ = false;
  MomentCorrections corrections_;
};

/// AdamW's rates; defaults as in torch.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // decoupled: p shrinks by lr * weight_decay, whatever the gradient
  double max_grad_norm = 0;    // clip all gradients together to this norm; 0: do not
  std::vector<ParameterGroup> groups = {};
};

/// Loshchilov and Hutter, arXiv 1711.05101: Adam whose decay does not pass through its moments.
class AdamW : public Adam {
 public:
  AdamW(ModelHandle model, const AdamWOptions& options = {});
  std::string_view name() const override { return "AdamW"; }
};

}  // namespace fleet::optim
