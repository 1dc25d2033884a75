// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "fleet/applications/environment_options.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/loss.h"

namespace fleet::applications {

/// What the models here have in common. It holds one as TORCH_MODULE's classes do: copies share it.
/// What training programs call has a dot, everything else of the module an arrow.
///
/// All are made alike: `Model(options)`, or by the name of a size, `BertLarge(options)`. What the
/// options leave open (0, or nothing) is that size's; everything else counts as it stands there.
///
///   auto model = fleet::applications::BertLarge();
///   strategy.recompute_configs = {.checkpoints = model.checkpoints()};
///   optimizer.minimize(batch, [&](const auto& micro_batch) { return model.loss(micro_batch); });
///   model->eval();
template <typename Impl>
class Application : public torch::nn::ModuleHolder<Impl> {
 public:
  using Options = typename Impl::Options;

  explicit Application(const Options& options = {})
      : torch::nn::ModuleHolder<Impl>(
            std::make_shared<Impl>(with_environment(options.resolved()))) {}
  Application(std::nullptr_t) : torch::nn::ModuleHolder<Impl>(nullptr) {}  // NOLINT: as its base

  const Options& options() const { return this->ptr()->options(); }

  /// The loss over a batch, as `minimize` takes it: micro-batches and ranks add up to the whole,
  /// whatever each has to be averaged over. Also a tensor, the mean: `torch::Tensor loss =
  /// model.loss(batch)`.
  template <typename Batch>
  auto loss(const Batch& batch) const {
    return this->ptr()->loss(batch);
  }

  /// One forward of its own: the loss, on which `backward()` can be called, its parts, and the
  /// accuracy. All are tensors, so nothing waits for a device.
  template <typename Batch>
  auto metrics(const Batch& batch) const {
    return this->ptr()->metrics(batch);
  }

  /// The names of the values between blocks, in the order in which forward computes them.
  std::vector<std::string> checkpoints() const { return this->ptr()->checkpoints(); }

  /// The strategy with these checkpoints, where it asks for recompute and says neither at which
  /// values nor for how much memory.
  DistributedStrategy with_checkpoints(DistributedStrategy strategy) const {
    auto& configs = strategy.recompute_configs;
    if (strategy.recompute && configs.checkpoints.empty() && configs.memory_budget.empty())
      configs.checkpoints = checkpoints();
    return strategy;
  }

  std::vector<torch::Tensor> parameters() const { return this->ptr()->parameters(); }
};

}  // namespace fleet::applications
