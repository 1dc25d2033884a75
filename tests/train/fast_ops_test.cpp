// SPDX-License-Identifier: Apache-2.0
// strategy.fast_ops on a net that is written for LibTorch alone.
#include <ATen/ops/scaled_dot_product_attention.h>

#include "fleet/memory/checkpoint.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/train/budget_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT
using torch::Tensor;

struct PlainNet : torch::nn::Module {
  explicit PlainNet(double dropout) : p(dropout) {
    in = register_module("in", torch::nn::Linear(6, 32));
    up = register_module("up", torch::nn::Linear(8, 16));
    down = register_module("down", torch::nn::Linear(16, 8));
    norm_weight = register_parameter("norm_weight", torch::ones({8}));
    out = register_module("out", torch::nn::Linear(32, 3));
  }
  Tensor loss(const Batch& batch) {
    auto x = torch::dropout(in(batch.data), p, is_training()).view({-1, 2, 2, 8});
    x = at::scaled_dot_product_attention(x, x, x, {}, is_training() ? p : 0.0);
    x = checkpoint(x.transpose(1, 2).reshape({-1, 8}), "context");  // tokens of all samples
    const auto wide = down(torch::dropout(torch::gelu(up(x)), p, is_training()));
    x = torch::layer_norm(x + torch::dropout(wide, p, is_training()), {8}, norm_weight);
    return torch::nn::functional::cross_entropy(out(x.view({-1, 32})), batch.target);
  }
  double p;
  torch::nn::Linear in{nullptr}, up{nullptr}, down{nullptr}, out{nullptr};
  Tensor norm_weight;
};

struct PlainTraining {
  int ranks = 1;
  DistributedStrategy strategy = {};
  double dropout = 0.3;
  bool fast = true;
};

Tensors train_plain(const PlainTraining& setup) {
  constexpr int64_t kSamples = 16, kSteps = 3;
  static std::mutex seed_mutex;
  Tensors result;
  run_ranks(setup.ranks, [&](const Comm& comm) {
    std::shared_ptr<PlainNet> net;
    {
      const std::lock_guard lock(seed_mutex);
      torch::manual_seed(21);
      net = std::make_shared<PlainNet>(setup.dropout);
    }
    comm->barrier("nets are made");  // ranks are threads here, with one generator
    if (comm->rank() == 0) torch::manual_seed(7);
    auto strategy = setup.strategy;
    strategy.fast_ops = setup.fast;
    DistributedOptimizer optimizer(
        std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}), strategy, comm);
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto batch = small_batch(kSamples, step);
      const int64_t share = kSamples / comm->size();
      const auto own = batch.slice(share * comm->rank(), share * (comm->rank() + 1));
      optimizer.minimize(own, [&](const Batch& b) { return net->loss(b); });
    }
    if (comm->rank() == 0) result = copies(net->parameters());
  });
  return result;
}

DistributedStrategy merged(int k_steps) {
  DistributedStrategy strategy;
  strategy.gradient_merge = true;
  strategy.gradient_merge_configs = {.k_steps = k_steps};
  return strategy;
}

TEST(FastOpsStrategyTest, WithoutDropoutTrainingIsTheSame) {
  expect_close(train_plain({.dropout = 0}), train_plain({.dropout = 0, .fast = false}), 1e-4, 1e-6);
}

TEST(FastOpsStrategyTest, MasksAreTheSameForMicroBatchesAndRanks) {
  const auto whole = train_plain({});
  EXPECT_FALSE(torch::allclose(whole[0], train_plain({.dropout = 0})[0], 1e-4, 1e-5));
  expect_close(train_plain({.strategy = merged(2)}), whole, 1e-4, 1e-6);
  expect_close(train_plain({.strategy = merged(4)}), whole, 1e-4, 1e-6);
  expect_close(train_plain({.ranks = 2}), whole, 1e-4, 1e-6);
  expect_close(train_plain({.ranks = 2, .strategy = merged(2)}), whole, 1e-4, 1e-6);
}

TEST(FastOpsStrategyTest, RecomputedIsPlainBitForBit) {
  const auto plain = train_plain({});
  PlainTraining setup;
  setup.strategy.recompute = true;
  setup.strategy.recompute_configs.checkpoints = {"context"};
  expect_equal(train_plain(setup), plain);
}

TEST(FastOpsStrategyTest, ABudgetChangesNothing) {
  DistributedStrategy plain;
  plain.fast_ops = true;
  const auto expected = train_deep({.strategy = plain, .updates = 4, .norm = false});
  auto strategy = within("60% of plain");
  strategy.fast_ops = true;
  const auto within_budget = train_deep({.strategy = strategy, .updates = 4, .norm = false});
  EXPECT_LT(within_budget.peak, expected.peak);
  expect_equal(within_budget.tensors, expected.tensors);
}

TEST(FastOpsStrategyTest, TrainsInMixedPrecision) {
  PlainTraining setup{.dropout = 0};
  const auto exact = train_plain(setup);
  setup.strategy.amp = true;
  expect_close(train_plain(setup), exact, 0.1, 0.02);
}

TEST(FastOpsStrategyTest, SaysWhatItReplaced) {
  ::testing::internal::CaptureStdout();
  train_plain({});
  const auto text = ::testing::internal::GetCapturedStdout();
  const std::string line =
      "[fast_ops] the first forward: 3 dropout, 1 scaled_dot_product_attention, 1 gelu, "
      "1 layer_norm, 1 cross_entropy_loss by Fleet's ops\n";
  EXPECT_TRUE(says(text, line));
  EXPECT_EQ(text.find(line), text.rfind(line)) << "said once";
}

TEST(FastOpsStrategyTest, TheEagerFormNeedsItsScope) {
  const auto net = small_net();
  DistributedStrategy strategy;
  strategy.fast_ops = true;
  auto optimizer = distributed_optimizer(small_optimizer("SGD", net, 0.1), strategy);
  const auto loss = mean_loss(net, small_batch(4, 0));
  EXPECT_TRUE(
      says(error_message_of([&] { optimizer.backward(loss); }), "the strategy has fast_ops"));
}

TEST(FastOpsStrategyTest, RefusesNamesThatItDoesNotKnow) {
  DistributedStrategy strategy;
  strategy.fast_ops = true;
  strategy.fast_ops_configs.exclude = {"layernorm"};
  EXPECT_TRUE(says(error_message_of([&] {
                     distributed_optimizer(small_optimizer("SGD", small_net(), 0.1), strategy);
                   }),
                   "exclude names 'layernorm', which is not replaced anyway",
                   "did you mean 'layer_norm'"));
}

}  // namespace
}  // namespace fleet
