// SPDX-License-Identifier: Apache-2.0
// What training says about memory: in reports, in one line, and with plan_only.

#include <regex>

#include <gtest/gtest.h>

#include "fleet/core/text/byte_size.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/train/block_net.h"
#include "tests/train/budget_training.h"

namespace fleet::testing {
namespace {

void expect_near(int64_t value, int64_t expected, double tolerance = 0.02) {
  EXPECT_NEAR(static_cast<double>(value), static_cast<double>(expected),
              tolerance * static_cast<double>(expected));
}

TEST(MemoryReport, HasPlainBudgetPredictedAndMeasured) {
  const auto plain = train({});
  const auto budget = share_of(plain, 0.5);
  Trained ours;
  const auto text = printed_by([&] { ours = train(within(budget)); });
  const auto& memory = ours.last.memory;
  expect_near(memory.plain_peak, plain.peak);
  EXPECT_EQ(memory.budget, budget);
  EXPECT_LE(memory.predicted_peak, budget);
  expect_near(memory.measured_peak, ours.peak);
  EXPECT_LE(memory.measured_peak, budget);
  expect_near(memory.measured_peak, memory.predicted_peak);
  expect_near(memory.now, ours.floor);
  EXPECT_FALSE(memory.is_resident);
  EXPECT_EQ(times_in(text, "[memory] plain training of 1024 samples at once would take "), 1)
      << text;
  EXPECT_TRUE(says(text, "; the budget in force is " + byte_size_text(budget) + "; ",
                   " used at the peak (", " predicted)"));
}

// In micro-batches the whole batch is never measured: it is scaled up.
TEST(MemoryReport, ScalesPlainTrainingUpFromMicroBatches) {
  const auto plain = train({});
  auto strategy = within(share_of(plain, 0.3));
  strategy.gradient_merge = true;
  strategy.gradient_merge_configs.k_steps = 4;
  const auto ours = train(strategy);
  EXPECT_EQ(ours.last.micro_batches, 4);
  expect_near(ours.last.memory.plain_peak, plain.peak, 0.1);
}

// The plan is made within the first window, and its prediction is not about the micro-batches
// before it.
TEST(MemoryReport, ComparesAPredictionWithTheMicroBatchesThatFollowedThePlan) {
  const auto plain = train({});
  const auto budget = share_of(plain, 0.15);
  auto strategy = within(budget);
  strategy.gradient_merge = true;
  strategy.gradient_merge_configs.k_steps = 4;
  const auto text = printed_by([&] { train(strategy, /*updates=*/1); });
  const std::regex line(
      R"(; ([0-9.]+ [KM]iB) used at the peak, micro-batches without a plan included; )"
      R"(([0-9.]+ [KM]iB) in those with one \(([0-9.]+ [KM]iB) predicted\))");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, line)) << text;
  const auto bytes = [&](int group) { return byte_size(found[group].str()).value_or(0); };
  EXPECT_LE(bytes(1), byte_size(byte_size_text(budget)).value_or(0));
  EXPECT_LE(bytes(2), bytes(1));
  expect_near(bytes(2), bytes(3));
}

// The micro-batches that measure what plain training takes have no limit: the line compares those
// after them with the budget.
TEST(MemoryReport, ComparesABudgetInPercentOfPlainWithWhatCameAfterItWasKnown) {
  auto strategy = within("50% of plain");
  strategy.gradient_merge = true;
  strategy.gradient_merge_configs.k_steps = 4;
  Trained ours;
  const auto text = printed_by([&] { ours = train(strategy, /*updates=*/1); });
  const std::regex line(R"(the budget in force is ([0-9.]+ [KM]iB); )"
                        R"(([0-9.]+ [KM]iB) used at the peak since it is known)"
                        R"( \(([0-9.]+ [KM]iB) predicted\))");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, line)) << text;
  const auto bytes = [&](int group) { return byte_size(found[group].str()).value_or(0); };
  EXPECT_GT(ours.last.memory.measured_peak, bytes(1)) << "the test proves nothing";
  EXPECT_LE(bytes(2), bytes(1));
  EXPECT_GT(bytes(2), bytes(1) / 2);
  expect_near(bytes(2), bytes(3));
  EXPECT_EQ(times_in(text, "used at the peak"), 1) << text;
}

TEST(MemoryReport, NamedCheckpointsHaveTheSameNumbers) {
  at::set_num_threads(1);
  BlockTraining setup{.net = {.blocks = 6, .width = 64, .dropout = 0.2}, .samples = 512};
  const auto counted_peak = [&] {
    const memory::BudgetAllocatorScope counting(memory::BudgetAllocator::cpu());
    auto& counter = memory::BudgetAllocator::cpu().counter();
    BlockNet net(setup.net);
    DistributedOptimizer optimizer(
        std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}), {},
        std::make_shared<comm::Communicator>());
    const auto batch = small_batch(setup.samples, 1);
    const auto before = counter.live();
    counter.reset_peaks();
    optimizer.minimize(batch, [&](const Batch& micro_batch) { return net->loss(micro_batch); });
    return counter.peak() - before;
  }();
  setup.strategy = {.recompute = true,
                    .recompute_configs = {.checkpoints = BlockNetImpl(setup.net).checkpoints()}};
  Outcome outcome;
  const auto text = printed_by([&] { outcome = train_blocks(setup); });
  const auto& memory = outcome.reports.back().memory;
  EXPECT_EQ(memory.budget, 0);
  expect_near(memory.plain_peak - memory.now, counted_peak, 0.05);
  EXPECT_LT(memory.measured_peak, memory.plain_peak);
  EXPECT_GT(memory.measured_peak, memory.now);
  EXPECT_EQ(times_in(text, "[memory] plain training of 512 samples at once would take "), 1)
      << text;
  EXPECT_TRUE(says(text, "; no budget is in force; "));
}

TEST(MemoryReport, WithoutRecomputeIsMeasured) {
  Trained plain;
  const auto text = printed_by([&] { plain = train({}); });
  const auto& memory = plain.last.memory;
  EXPECT_EQ(memory.budget, 0);
  EXPECT_EQ(times_in(text, "[memory] plain training takes "), 1) << text;
  if (memory.is_resident) GTEST_SKIP() << "this build does not count tensors of plain training";
  expect_near(memory.measured_peak, plain.peak);
  expect_near(memory.plain_peak, plain.peak);
  expect_near(memory.now, plain.floor);
}

// In the eager form the forward is the user's own, and is counted all the same.
TEST(MemoryReport, OfTheEagerFormHasTheForward) {
  static constexpr int64_t kTemporary = 100 << 20;
  enum class Way { kScope, kNoScope, kDropped };
  const auto peak_of = [](const DistributedStrategy& strategy, Way way) {
    BlockNet net{BlockNetOptions{}};
    DistributedOptimizer optimizer(
        std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}), strategy,
        std::make_shared<comm::Communicator>());
    const auto backward = [&](int64_t bytes) {
      Loss loss;
      std::optional<DistributedOptimizer::ForwardScope> scope;
      if (way != Way::kNoScope) scope.emplace(optimizer.forward());
      if (bytes > 0) torch::empty({bytes}, torch::kByte);
      loss = net->loss(small_batch(16, 1));
      scope.reset();
      return optimizer.backward(loss);
    };
    const auto first = backward(kTemporary);
    EXPECT_FALSE(first.memory.is_resident);
    backward(0);
    if (way == Way::kDropped) {
      net->zero_grad();
      backward(0);
    }
    const auto peak = optimizer.step().memory.measured_peak;
    backward(0);
    EXPECT_LT(optimizer.step().memory.measured_peak, kTemporary) << "of the next window";
    return peak;
  };
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "this build does not count tensors of plain training";
#endif
  const DistributedStrategy recompute{.recompute = true,
                                      .recompute_configs = {.checkpoints = {"block.1"}}};
  const auto plain = peak_of({}, Way::kScope);
  EXPECT_GE(plain, kTemporary);
  expect_near(plain, peak_of(recompute, Way::kScope));
  expect_near(plain, peak_of({}, Way::kNoScope));
  EXPECT_LT(peak_of({}, Way::kDropped), kTemporary);
  EXPECT_LT(peak_of(recompute, Way::kDropped), kTemporary);
}

// The first of two optimizers may end before the second.
TEST(MemoryReport, CountingEndsWithTheLastOptimizer) {
  auto& allocator = memory::BudgetAllocator::cpu();
  ASSERT_FALSE(allocator.is_on());
  auto first = std::make_unique<memory::BudgetAllocatorScope>(allocator);
  auto second = std::make_unique<memory::BudgetAllocatorScope>(allocator);
  first.reset();
  EXPECT_TRUE(allocator.is_on());
  second.reset();
  EXPECT_FALSE(allocator.is_on());
}

TEST(StrategyLines, EachIsPrintedOnce) {
  const auto lines = printed_by([] {
    auto net = small_net();
    distributed_optimizer(std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = 0.1}),
                          {.localsgd = true, .auto_ = true});
  });
  EXPECT_EQ(times_in(lines, "auto with localsgd is adaptive_localsgd"), 1) << lines;
}

// ---- plan_only

std::string planned_only(const std::string& budget, std::string* lines) {
  auto strategy = within(budget);
  strategy.recompute_configs.plan_only = true;
  std::string text;
  *lines = printed_by(
      [&] { text = error_message_of<HelpRequested>([&] { train(strategy, /*updates=*/40); }); });
  return text;
}

TEST(PlanOnly, SaysThePlanThatIsUsedOnce) {
  const auto plain = train({});
  std::string lines;
  const auto text = planned_only(format("{}B", share_of(plain, 0.5)), &lines);
  EXPECT_EQ(times_in(text, "a micro-batch of 1024 samples within "), 1) << text;
  EXPECT_TRUE(says(text, "predicted peak ", "(plain training ", "s for plain training"));
  EXPECT_EQ(times_in(lines, "[plan]"), 0) << lines;
}

// Where the size of micro-batches is chosen too, the one that is kept.
TEST(PlanOnly, WaitsForTheSizeThatIsKept) {
  const auto plain = train({});
  auto strategy = within(share_of(plain, 0.12));  // no plan holds the whole batch in that
  strategy.gradient_merge = true;
  strategy.recompute_configs.plan_only = true;
  const auto text = error_message_of<HelpRequested>([&] { train(strategy, /*updates=*/40); });
  EXPECT_EQ(times_in(text, "a micro-batch of "), 1) << text;
  EXPECT_EQ(text.find("a micro-batch of 1024 samples"), std::string::npos) << text;
}

TEST(PlanOnly, WithoutABudgetSaysWhatPlainTrainingTakes) {
  const auto plain = train({});
  std::string lines;
  const auto text = planned_only("", &lines);
  EXPECT_TRUE(says(text, "plain training of a micro-batch of 1024 samples takes ",
                   "at its peak, in the ", "are live before the forward (", "parameters ",
                   "\"75% of plain\"", "\"50% of plain\"", "(the least)"));
  const auto at = text.find(" takes ") + 7;
  const auto peak = byte_size(text.substr(at, text.find(" at its peak") - at)).value_or(0);
  expect_near(peak, plain.peak);
  EXPECT_EQ(times_in(lines, "[plan]"), 0) << lines;
}

// ---- plans that replace others

TEST(PlanReplaced, SaysWhy) {
  at::set_num_threads(1);
  const auto plain = train({}, 6, 2048);
  const memory::BudgetAllocatorScope counting(memory::BudgetAllocator::cpu());
  const auto growing = [&](int64_t budget) {
    auto net = deep_net();
    auto optimizer = distributed_optimizer(
        std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}), within(budget));
    for (int i = 0; i < 9; ++i) {
      // One closure for all sizes, so that nobody knows how many samples there are.
      const auto batch = small_batch(i < 4 ? 512 : 2048, i);
      optimizer.minimize([&] { return mean_loss(net, batch); });
    }
  };
  const auto roomy = printed_by([&] { growing(2 * plain.peak); });
  EXPECT_EQ(times_in(roomy, "[plan] "), 2) << roomy;
  EXPECT_TRUE(says(roomy, "[plan] replaces the plan before it, since the forward saves ",
                   " was planned for: a micro-batch within "));
  const auto tight = printed_by([&] { growing(share_of(plain, 0.5)); });
  const auto replaced = times_in(tight, "[plan] replaces the plan before it, since ");
  EXPECT_GE(replaced, 1) << tight;
  EXPECT_EQ(times_in(tight, "[plan] "), 1 + replaced) << tight;
}

TEST(PlanReplaced, SaysThatItWasEstimated) {
  at::set_num_threads(1);
  const auto plain = train({}, 6, 2048);
  const memory::BudgetAllocatorScope counting(memory::BudgetAllocator::cpu());
  const auto text = printed_by([&] {
    auto net = deep_net();
    auto optimizer = distributed_optimizer(
        std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}),
        within(2 * plain.peak));
    for (int i = 0; i < 9; ++i) {
      const auto batch = small_batch(i < 4 ? 1024 : 2048, i);
      optimizer.minimize(batch,
                         [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
    }
  });
  EXPECT_EQ(times_in(text, "[plan] "), 3) << text;
  EXPECT_TRUE(says(text, "[plan] estimated from a micro-batch of 1024 samples: ",
                   "[plan] replaces the plan before it, since that one was estimated, and this one "
                   "is measured: a micro-batch of 2048 samples within "));
}

}  // namespace
}  // namespace fleet::testing
