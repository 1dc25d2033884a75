// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "fleet/memory/checkpoint.h"

#include "tests/train/small_training.h"

namespace fleet::testing {

struct BlockNetOptions {
  int64_t blocks = 4;
  int64_t width = 12;
  bool norm = true;
  double dropout = 0;
};

/// Blocks with names: the input of a block is read again at its end, and that of the net by every
/// block, so that values cross cuts.
struct BlockNetImpl : torch::nn::Module {
  explicit BlockNetImpl(const BlockNetOptions& options) : options(options) {
    static std::mutex seed_mutex;  // ranks are threads here
    const std::lock_guard lock(seed_mutex);
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(6, options.width));
    register_module("linears", linears);
    register_module("norms", norms);
    for (int64_t i = 0; i < options.blocks; ++i) {
      linears->push_back(torch::nn::Linear(options.width, options.width));
      if (options.norm) norms->push_back(torch::nn::BatchNorm1d(options.width));
    }
    last = register_module("last", torch::nn::Linear(options.width, 3));
  }

  torch::Tensor forward(const torch::Tensor& data) {
    const auto input = first(data);
    auto x = fleet::checkpoint(input.relu(), "first");
    for (int64_t i = 0; i < options.blocks; ++i) {
      auto y = linears->at<torch::nn::LinearImpl>(static_cast<size_t>(i)).forward(x);
      if (options.norm) {
        y = norms->at<torch::nn::BatchNorm1dImpl>(static_cast<size_t>(i)).forward(y);
      }
      y = torch::gelu(y).tanh();
      if (options.dropout > 0) y = torch::dropout(y, options.dropout, is_training());
      x = fleet::checkpoint(x + y * input.sigmoid(), "block." + std::to_string(i));
      if (after_block) after_block(i, x);
    }
    return last(x);
  }

  torch::Tensor loss(const Batch& batch) {
    return torch::nn::functional::cross_entropy(forward(batch.data), batch.target);
  }

  std::vector<std::string> checkpoints() const {
    std::vector<std::string> names{"first"};
    for (int64_t i = 0; i < options.blocks; ++i) names.push_back("block." + std::to_string(i));
    return names;
  }

  BlockNetOptions options;
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::ModuleList linears, norms;
  std::function<void(int64_t block, torch::Tensor& x)> after_block;
};
TORCH_MODULE(BlockNet);

/// What a training leaves behind, to be compared bit for bit.
struct Outcome {
  Tensors parameters, buffers;
  std::vector<double> losses;
  std::vector<UpdateReport> reports;
};

inline void expect_same(const Outcome& a, const Outcome& b) {
  expect_equal(a.parameters, b.parameters);
  expect_equal(a.buffers, b.buffers);
  EXPECT_EQ(a.losses, b.losses);
}

struct BlockTraining {
  DistributedStrategy strategy = {};
  BlockNetOptions net = {};
  double lr = 0.1;
  int64_t samples = 16;
  int64_t steps = 4;
  std::function<void(BlockNet&)> prepare = {};  // after the optimizer was made
};

inline Outcome train_blocks(const BlockTraining& setup,
                            Comm comm = std::make_shared<comm::Communicator>()) {
  BlockNet net(setup.net);
  DistributedOptimizer optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = setup.lr}),
      setup.strategy, comm);
  if (setup.prepare) setup.prepare(net);
  if (comm->size() == 1) torch::manual_seed(9);
  Outcome outcome;
  for (int64_t step = 0; step < setup.steps; ++step) {
    const auto batch = small_batch(setup.samples, step * comm->size() + comm->rank());
    outcome.reports.push_back(optimizer.minimize(
        batch, [&](const Batch& micro_batch) { return net->loss(micro_batch); }));
    outcome.losses.push_back(outcome.reports.back().loss);
  }
  outcome.parameters = copies(net->parameters());
  outcome.buffers = copies(net->buffers());
  if (comm->size() == 1) outcome.buffers.push_back(torch::rand({2}));  // where the generator is
  return outcome;
}

/// The outcomes of `ranks` ranks. `change` makes rank n's training of `setup`.
inline std::vector<Outcome> train_blocks_on(
    int ranks, const BlockTraining& setup,
    const std::function<void(BlockTraining&, int rank)>& change = {}) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const Comm& comm) {
    auto own = setup;
    if (change) change(own, comm->rank());
    outcomes[static_cast<size_t>(comm->rank())] = train_blocks(own, comm);
  });
  return outcomes;
}

inline void expect_same(const std::vector<Outcome>& a, const std::vector<Outcome>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) expect_same(a[i], b[i]);
}

}  // namespace fleet::testing
