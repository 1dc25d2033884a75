// recompute_configs.memory_budget: one number, and training stays within it, bit for bit what it
// was.

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

#include "fleet/core/format.h"
#include "fleet/memory/budget_allocator.h"
#include "fleet/memory/budget_plans.h"

#include "tests/support/error_of.h"
#include "tests/train/small_training.h"

namespace fleet::testing {
namespace {

using memory::BudgetAllocator;

torch::nn::Sequential deep_net() {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(6, 64));
  for (int i = 0; i < 12; ++i) {
    net->push_back(torch::nn::Linear(64, 64));
    net->push_back(torch::nn::GELU());
    net->push_back(torch::nn::BatchNorm1d(64));
    net->push_back(torch::nn::Dropout(0.1));
  }
  net->push_back(torch::nn::Linear(64, 3));
  return net;
}

constexpr int64_t kManySamples = 8192;  // activations of 2 MiB, so that they may leave

struct Trained {
  std::vector<torch::Tensor> tensors;
  int64_t peak = 0;   // of the last two updates
  int64_t floor = 0;  // what lives between updates
  UpdateReport last;
};

Trained train(DistributedStrategy strategy, int updates = 6, int64_t samples = 1024) {
  at::set_num_threads(1);
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  auto& counter = BudgetAllocator::cpu().counter();
  auto net = deep_net();
  auto optimizer = distributed_optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}), strategy);
  Trained result;
  torch::manual_seed(8);
  for (int i = 0; i < updates; ++i) {
    const auto batch = small_batch(samples, i);
    counter.reset_peaks();
    result.last =
        optimizer.minimize(batch, [&](const Batch& part) { return mean_loss(net, part); });
    if (i + 2 >= updates) result.peak = std::max(result.peak, counter.peak());
    result.floor = counter.live();
  }
  for (const auto& parameter : net->parameters())
    result.tensors.push_back(parameter.detach().clone());
  for (const auto& buffer : net->buffers()) result.tensors.push_back(buffer.clone());
  result.tensors.push_back(torch::tensor(result.last.loss));
  return result;
}

DistributedStrategy within(int64_t bytes) {
  DistributedStrategy strategy;
  strategy.recompute = true;
  strategy.recompute_configs.memory_budget = format("{}B", bytes);
  return strategy;
}

void expect_equal(const Trained& a, const Trained& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) EXPECT_TRUE(a.tensors[i].equal(b.tensors[i])) << i;
}

TEST(MemoryBudget, IsHeldAndChangesNothing) {
  const auto plain = train({});
  const auto activations = plain.peak - plain.floor;
  for (const double share : {0.75, 0.5, 0.4}) {
    const auto budget =
        plain.floor + static_cast<int64_t>(share * static_cast<double>(activations));
    const auto ours = train(within(budget));
    SCOPED_TRACE(format("{} of {} bytes", budget, plain.peak));
    expect_equal(ours, plain);
    EXPECT_LE(ours.peak, budget);
    EXPECT_EQ(ours.last.parts, 1);
    EXPECT_GT(ours.last.memory.given_up, 0);
  }
}

TEST(MemoryBudget, ThatIsLargeEnoughLeavesTheForwardAlone) {
  const auto plain = train({});
  const auto ours = train(within(plain.peak * 2));
  expect_equal(ours, plain);
  EXPECT_EQ(ours.last.memory.given_up, 0);
}

TEST(MemoryBudget, WorksWithMergeAndAmp) {
  DistributedStrategy strategy;
  strategy.gradient_merge = true;
  strategy.gradient_merge_configs = {.k_steps = 2};
  strategy.amp = true;
  const auto plain = train(strategy);
  auto with_budget = within(plain.floor + (plain.peak - plain.floor) / 2);
  with_budget.gradient_merge = true;
  with_budget.gradient_merge_configs = {.k_steps = 2};
  with_budget.amp = true;
  const auto ours = train(with_budget);
  expect_equal(ours, plain);
  EXPECT_LE(ours.peak, plain.floor + (plain.peak - plain.floor) / 2);
}

// Where no plan is enough, parts become smaller.
TEST(MemoryBudget, BelowTheLeastSplitsTheBatch) {
  const auto plain = train({});
  const auto ours = train(within(plain.floor + (plain.peak - plain.floor) / 24));
  EXPECT_GT(ours.last.parts, 1);
  EXPECT_LE(ours.peak, plain.floor + (plain.peak - plain.floor) / 24);
}

// A batch that grows is measured and planned again; a smaller one is not.
// Parts of one size are as quick as they are: the one that is kept is no slower by its plan than
// twice and half of it, and trains as if it had been asked for.
TEST(MemoryBudget, ChoosesTheSizeOfPartsWhereMergingIsLeftToIt) {
  const auto plain = train({});
  auto strategy = within(plain.floor + (plain.peak - plain.floor) * 3 / 10);
  strategy.gradient_merge = true;
  const auto chosen = train(strategy, /*updates=*/24);
  ASSERT_GT(chosen.last.parts, 1) << "no part of it fits as it is";
  ASSERT_LE(chosen.last.parts, 64);
  strategy.gradient_merge_configs.k_steps = 4;
  EXPECT_EQ(train(strategy).last.parts, 4);
}

TEST(MemoryBudget, CountsOnAFileBelowWhatRecomputeAloneCanDo) {
  const auto plain = train({}, 4, kManySamples);
  const auto lean = [&](bool offload, double share) {
    auto strategy = within(
        plain.floor + static_cast<int64_t>(share * static_cast<double>(plain.peak - plain.floor)));
    strategy.recompute_configs.enable_offload = offload;
    return train(strategy, 6, kManySamples);
  };
  // The least that recompute alone brings through without splitting.
  double share = 0.6;
  while (share > 0.1 && lean(/*offload=*/false, share).last.parts == 1) share -= 0.05;
  const auto away = lean(/*offload=*/true, share);
  EXPECT_EQ(away.last.parts, 1) << share;
  EXPECT_GT(away.last.memory.offloaded_bytes, 0);
  EXPECT_EQ(away.last.memory.offloaded_bytes, away.last.memory.fetched_bytes);
}

TEST(MemoryBudget, AdaptsToOtherSizes) {
  at::set_num_threads(1);
  const auto plain = train({}, 6, 2048);
  auto strategy = within(plain.floor + (plain.peak - plain.floor) / 2);
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  const auto run = [&](const DistributedStrategy& with) {
    auto net = deep_net();
    auto optimizer = distributed_optimizer(
        std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}), with);
    torch::manual_seed(8);
    for (int i = 0; i < 12; ++i) {
      // One closure for all sizes, so that nobody knows how many samples there are.
      const auto batch = small_batch(i < 6 ? 512 : i % 2 ? 2048 : 1024, i);
      optimizer.minimize([&] { return mean_loss(net, batch); });
    }
    std::vector<torch::Tensor> values;
    for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
    return values;
  };
  const auto expected = run({});
  const auto ours = run(strategy);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(expected[i])) << i;
}

TEST(MemoryBudget, IsASizeOrAShareOfTheMachine) {
  EXPECT_EQ(memory::budget_bytes("12GiB"), int64_t{12} << 30);
  EXPECT_EQ(memory::budget_bytes("0%"), 0);
  EXPECT_EQ(memory::budget_bytes("101%"), 0);
  EXPECT_EQ(memory::budget_bytes("a lot"), 0);
  const auto half = memory::budget_bytes("50%");
  EXPECT_GT(half, int64_t{100} << 20);
  EXPECT_NEAR(static_cast<double>(memory::budget_bytes("100%")), 2.0 * static_cast<double>(half),
              2);
}

}  // namespace
}  // namespace fleet::testing
