// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"

#include "tests/train/small_training.h"

namespace fleet::testing {

/// 12 blocks whose activations are most of what a step takes.
inline torch::nn::Sequential deep_net(bool norm = true) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(6, 64));
  for (int i = 0; i < 12; ++i) {
    net->push_back(torch::nn::Linear(64, 64));
    net->push_back(torch::nn::GELU());
    if (norm) net->push_back(torch::nn::BatchNorm1d(64));
    net->push_back(torch::nn::Dropout(0.1));
  }
  net->push_back(torch::nn::Linear(64, 3));
  return net;
}

struct Trained {
  std::vector<torch::Tensor> tensors;
  int64_t peak = 0;   // of the last two updates
  int64_t floor = 0;  // what lives between updates
  UpdateReport last;
  std::vector<int64_t> micro_batches;  // of every update
};

struct DeepTraining {
  DistributedStrategy strategy = {};
  int updates = 6;
  int64_t samples = 1024;
  bool norm = true;
  std::function<void(DistributedOptimizer&, int update)> before_update = {};
};

/// Trains `deep_net`, every tensor counted.
inline Trained train_deep(const DeepTraining& setup) {
  at::set_num_threads(1);
  const memory::BudgetAllocatorScope counting(memory::BudgetAllocator::cpu());
  auto& counter = memory::BudgetAllocator::cpu().counter();
  auto net = deep_net(setup.norm);
  auto optimizer = distributed_optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}), setup.strategy);
  Trained result;
  torch::manual_seed(8);
  for (int i = 0; i < setup.updates; ++i) {
    if (setup.before_update) setup.before_update(optimizer, i);
    const auto batch = small_batch(setup.samples, i);
    counter.reset_peaks();
    result.last = optimizer.minimize(
        batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
    if (i + 2 >= setup.updates) result.peak = std::max(result.peak, counter.peak());
    result.floor = counter.live();
    result.micro_batches.push_back(result.last.micro_batches);
  }
  for (const auto& parameter : net->parameters())
    result.tensors.push_back(parameter.detach().clone());
  for (const auto& buffer : net->buffers()) result.tensors.push_back(buffer.clone());
  result.tensors.push_back(torch::tensor(result.last.loss));
  return result;
}

inline Trained train(const DistributedStrategy& strategy, int updates = 6, int64_t samples = 1024) {
  return train_deep({.strategy = strategy, .updates = updates, .samples = samples});
}

inline DistributedStrategy within(const std::string& budget) {
  DistributedStrategy strategy;
  strategy.recompute = true;
  strategy.recompute_configs.memory_budget = budget;
  return strategy;
}
inline DistributedStrategy within(int64_t bytes) { return within(format("{}B", bytes)); }

/// The budget that leaves this share of plain training's activations.
inline int64_t share_of(const Trained& plain, double share) {
  return plain.floor + static_cast<int64_t>(share * static_cast<double>(plain.peak - plain.floor));
}

inline void expect_equal(const Trained& a, const Trained& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) EXPECT_TRUE(a.tensors[i].equal(b.tensors[i])) << i;
}

/// What `body` prints.
template <typename Body>
std::string printed_by(Body&& body) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
}

inline int times_in(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace fleet::testing
