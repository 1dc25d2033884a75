// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "fleet/data/batch.h"
#include "fleet/optim/adam.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/sgd.h"
#include "fleet/train/distributed_optimizer.h"

#include "tests/support/thread_ranks.h"

namespace fleet::testing {

using Tensors = std::vector<torch::Tensor>;

inline torch::nn::Sequential small_net(bool norm = false) {
  static std::mutex seed_mutex;  // ranks are threads here, and the default generator the process's
  const std::lock_guard lock(seed_mutex);
  torch::manual_seed(21);
  torch::nn::Sequential net(torch::nn::Linear(6, 10));
  if (norm) net->push_back(torch::nn::BatchNorm1d(10));
  net->push_back(torch::nn::Functional(torch::relu));
  net->push_back(torch::nn::Linear(10, 3));
  return net;
}

inline Batch small_batch(int64_t samples, int64_t step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step) + 1);
  return {torch::randn({samples, 6}, generator), torch::randint(0, 3, {samples}, generator)};
}

inline torch::Tensor mean_loss(torch::nn::Sequential net, const Batch& batch) {
  return torch::nn::functional::cross_entropy(net->forward(batch.data), batch.target);
}

/// The weight of a sample is its target + 1: 1 to 3.
inline WeightedLoss weighted_loss(torch::nn::Sequential net, const Batch& batch) {
  const auto losses = torch::nn::functional::cross_entropy(
      net->forward(batch.data), batch.target,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  const auto weights = batch.target.to(torch::kFloat) + 1;
  return {.sum = (losses * weights).sum(), .weight = weights.sum().item<double>()};
}

inline std::unique_ptr<optim::Optimizer> small_optimizer(const std::string& name,
                                                         torch::nn::Sequential net, double lr) {
  if (name == "SGD") return std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = lr});
  if (name == "Momentum") {
    return std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = lr});
  }
  if (name == "AdamW") {
    return std::make_unique<optim::AdamW>(net, optim::AdamWOptions{.lr = lr / 10, .epsilon = 1e-4});
  }
  return std::make_unique<optim::Adam>(net, optim::AdamOptions{.lr = lr / 10, .epsilon = 1e-4});
}

inline Tensors copies(const std::vector<torch::Tensor>& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

struct SmallTraining {
  std::string optimizer = "Momentum";
  DistributedStrategy strategy = {};
  double lr = 0.1;
  bool norm = false;
  bool weighted = false;
  int64_t samples = 13;  // the last batch is short
  int64_t steps = 6;
  double first_share = 0.5;    // of every batch, for the first of two ranks
  bool equal_weights = false;  // a mistake: every part counts the same, however many samples it has
};

/// Trains with `ranks` ranks that share every batch unevenly, and returns the masters of rank 0's
/// parameters; all ranks must hold the same.
inline Tensors train_small(int ranks, const SmallTraining& setup) {
  Tensors result;
  run_ranks(ranks, [&](const Comm& comm) {
    auto net = small_net(setup.norm);
    DistributedOptimizer optimizer(small_optimizer(setup.optimizer, net, setup.lr), setup.strategy,
                                   comm);
    for (int64_t step = 0; step < setup.steps; ++step) {
      const bool is_last = step + 1 == setup.steps;
      const int64_t samples = is_last ? setup.samples / 2 - 1 : setup.samples;
      const auto batch = small_batch(samples, step);
      const auto cut_before = [&](int rank) -> int64_t {
        if (comm->size() != 2 || rank != 1) return samples * rank / comm->size();
        return static_cast<int64_t>(static_cast<double>(samples) * setup.first_share);
      };
      const auto own = batch.slice(cut_before(comm->rank()), cut_before(comm->rank() + 1));
      const auto report = optimizer.minimize(own, [&](const Batch& micro_batch) -> Loss {
        if (setup.weighted) return weighted_loss(net, micro_batch);
        if (setup.equal_weights)
          return WeightedLoss{.sum = mean_loss(net, micro_batch), .weight = 1};
        return mean_loss(net, micro_batch);
      });
      EXPECT_TRUE(report.updated);
      EXPECT_EQ(report.update, step + 1);
    }
    Tensors values;
    for (const auto& span : optimizer.arena().spans()) {
      values.push_back(span.value.detach().clone());
      EXPECT_TRUE(same_everywhere(comm, span.value));
    }
    if (comm->rank() == 0) result = values;
  });
  return result;
}

inline void expect_close(const Tensors& a, const Tensors& b, double rtol = 1e-4,
                         double atol = 1e-6) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a[i], b[i], rtol, atol))
        << "parameter " << i << " differs by " << (a[i] - b[i]).abs().max().item<float>();
  }
}

inline void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

}  // namespace fleet::testing
