// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

#include "fleet/optim/optimizer.h"

namespace torch::optim {
class Optimizer;
}

namespace fleet::optim {

/// A torch::optim optimizer, by value, by reference or in a shared pointer. Types must be complete:
/// include torch/torch.h, or the header of the optimizer.
template <typename O>
concept IsTorchOptimizer = std::derived_from<std::remove_cvref_t<O>, ::torch::optim::Optimizer> ||
    (requires { typename std::remove_cvref_t<O>::element_type; } &&
     std::convertible_to<std::remove_cvref_t<O>, std::shared_ptr<::torch::optim::Optimizer>>);

/// What Fleet does around a torch optimizer.
struct TorchOptimizerOptions {
  double max_grad_norm = 0;  // clip all gradients together to this norm; 0: do not
};

/// Any optimizer of LibTorch, or a subclass of the user's own, on the arena's gradients. It sees
/// what it would see in a plain training loop: the mean gradient, unscaled and clipped, in
/// `grad()`, which is undefined where no rank has one. Unlike other optimizers', `grad()` holds
/// that gradient after the update too. Masters of bf16 parameters take the place of the parameters
/// in its groups.
///
/// `lr` is the rate of its first parameter group; `set_lr`, and so a schedule of Fleet, moves the
/// rates of all groups in proportion. torch's schedulers, made on the same object, work as well.
/// Its state is kept by its own `save` and `load`.
///
/// Runs LibTorch's ops, parameter by parameter: about three times slower than the fused passes of
/// optim::Adam. Optimizers that call a closure several times per step (LBFGS) are refused.
///
///   auto rmsprop = std::make_shared<torch::optim::RMSprop>(net->parameters(), 0.01);
///   torch::optim::StepLR scheduler(*rmsprop, 30, 0.1);
///   auto optimizer = fleet::distributed_optimizer(net, rmsprop, strategy);
class TorchOptimizer : public Optimizer {
 public:
  TorchOptimizer(ModelHandle model, std::shared_ptr<::torch::optim::Optimizer> optimizer,
                 const TorchOptimizerOptions& options = {});
  /// By reference: it must outlive this, as the model must.
  TorchOptimizer(ModelHandle model, ::torch::optim::Optimizer& optimizer,
                 const TorchOptimizerOptions& options = {});
  /// Moved in.
  template <std::derived_from<::torch::optim::Optimizer> O>
  requires(!std::is_lvalue_reference_v<O>)
      TorchOptimizer(ModelHandle model, O&& optimizer, const TorchOptimizerOptions& options = {})
      : TorchOptimizer(std::move(model),
                       std::shared_ptr<::torch::optim::Optimizer>(
                           std::make_shared<O>(std::forward<O>(optimizer))),
                       options) {}

  std::string_view name() const override { return name_; }  // "torch::optim::RMSprop"
  ::torch::optim::Optimizer& wrapped() const { return *optimizer_; }

  double lr() const override;
  void set_lr(double lr) override;

  bool has_opaque_state() const override { return true; }
  torch::Tensor opaque_state() const override;
  void set_opaque_state(const torch::Tensor& bytes) override;

 private:
  std::vector<std::string> state_names() const override { return {}; }
  void on_bind() override;
  void update(const std::vector<bool>& used, double gradient_scale) override;
  std::vector<double> rates() const;
  void check_in_place() const;

  std::shared_ptr<::torch::optim::Optimizer> optimizer_;
  std::string name_;
  std::vector<torch::Tensor> tensors_;  // per span: what the optimizer updates; undefined: nothing
  std::vector<double> set_rates_;       // per group: by the last `set_lr`
  std::vector<double> rate_ratios_;     // per group: to the first one
  mutable bool is_serialisable_ = false;
};

}  // namespace fleet::optim
