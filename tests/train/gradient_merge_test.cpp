// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/passes/gradient_merge.h"

#include <latch>

#include "fleet/core/parameter_arena.h"

#include "tests/train/small_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

DistributedStrategy merged(GradientMergeConfigs configs) {
  return {.gradient_merge = true, .gradient_merge_configs = configs};
}

TEST(GradientMergeTest, CutsBatchesIntoEqualPartsAndNoneIsEmpty) {
  const auto sizes = [](const optim::GradientMergeOptions& options, int64_t samples) {
    std::vector<int64_t> result;
    int64_t next = 0;
    for (const auto& part : optim::GradientMerge(options).split(samples)) {
      EXPECT_EQ(part.begin, next);
      next = part.end;
      result.push_back(part.end - part.begin);
    }
    EXPECT_EQ(next, samples);
    return result;
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(sizes({.k_steps = 4}, 13), (Sizes{3, 3, 3, 4}));
  EXPECT_EQ(sizes({.k_steps = 4}, 3), (Sizes{1, 1, 1}));
  EXPECT_EQ(sizes({.k_steps = 4}, 0), Sizes{});
  EXPECT_EQ(sizes({.micro_batch_size = 5}, 11), (Sizes{3, 4, 4}));
  EXPECT_EQ(sizes({.micro_batch_size = 5}, 5), (Sizes{5}));
}

TEST(GradientMergeTest, PartsOfABatchEqualTheBatchForEveryOptimizer) {
  struct Kind {
    std::string optimizer;
    bool lars, lamb;
  };
  for (const auto& kind :
       {Kind{"SGD", false, false}, Kind{"Momentum", false, false}, Kind{"Adam", false, false},
        Kind{"Momentum", true, false}, Kind{"Adam", false, true}}) {
    for (const bool weighted : {false, true}) {
      SmallTraining setup{.optimizer = kind.optimizer, .weighted = weighted};
      setup.strategy.lars = kind.lars;
      setup.strategy.lamb = kind.lamb;
      if (kind.lars) {
        setup.strategy.lars_configs.lars_coeff = 0.05f;
        setup.lr = 0.5;
      }
      const auto whole = train_small(1, setup);
      setup.strategy.gradient_merge = true;
      for (const int ranks : {1, 2, 4}) {
        setup.strategy.gradient_merge_configs = {.k_steps = 3};
        expect_close(train_small(ranks, setup), whole);
        setup.strategy.gradient_merge_configs = {.micro_batch_size = 2};
        expect_close(train_small(ranks, setup), whole);
      }
    }
  }
}

// Three calls with 4, 2 and 5 tokens make the update of one call with 11.
TEST(GradientMergeTest, CallsOfUnequalWeightEqualOneBigBatch) {
  const auto batch = small_batch(11, 3);
  const std::vector<Batch> parts = {batch.slice(0, 4), batch.slice(4, 6), batch.slice(6, 11)};
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](const Comm& comm) {
      auto whole = small_net();
      auto net = small_net();
      DistributedOptimizer plain(small_optimizer("Momentum", whole, 0.1), {}, comm);
      DistributedOptimizer merging(small_optimizer("Momentum", net, 0.1), merged({.k_steps = 3}),
                                   comm);
      for (int update = 1; update <= 3; ++update) {
        const auto expected = plain.minimize([&]() -> Loss { return weighted_loss(whole, batch); });
        for (size_t i = 0; i < parts.size(); ++i) {
          const auto report =
              merging.minimize([&]() -> Loss { return weighted_loss(net, parts[i]); });
          EXPECT_EQ(report.updated, i == 2);
          EXPECT_EQ(report.micro_batches, static_cast<int64_t>(i) + 1);
          EXPECT_EQ(report.update, i == 2 ? update : update - 1);
          if (i == 2) {
            EXPECT_NEAR(report.loss, expected.loss, 1e-6);
            EXPECT_EQ(report.weight, expected.weight);
          }
        }
      }
      expect_close(copies(net->parameters()), copies(whole->parameters()));
    });
  }
}

TEST(GradientMergeTest, EndOfEpochUpdatesWithWhatIsThereOrDropsIt) {
  const auto batch = small_batch(8, 3);
  auto whole = small_net();
  DistributedOptimizer plain(small_optimizer("SGD", whole, 0.1), {},
                             std::make_shared<comm::Communicator>());
  plain.minimize([&] { return mean_loss(whole, batch); });
  for (const bool drop : {false, true}) {
    auto net = small_net();
    const auto before = copies(net->parameters());
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1),
                                   merged({.k_steps = 5, .drop_last = drop}),
                                   std::make_shared<comm::Communicator>());
    EXPECT_FALSE(optimizer.end_epoch());  // nothing is open
    optimizer.minimize([&] { return mean_loss(net, batch.slice(0, 4)); });
    optimizer.minimize([&] { return mean_loss(net, batch.slice(4, 8)); });
    const auto report = optimizer.end_epoch();
    EXPECT_EQ(report.has_value(), !drop);
    EXPECT_EQ(optimizer.updates(), drop ? 0 : 1);
    expect_close(copies(net->parameters()), drop ? before : copies(whole->parameters()), 1e-5);
    // The next window starts afresh.
    EXPECT_EQ(optimizer.minimize([&] { return mean_loss(net, batch); }).micro_batches, 1);
  }
}

TEST(GradientMergeTest, TheEndOfAnEpochIsNoCallOfMinimize) {
  auto net = small_net();
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), merged({.k_steps = 5}),
                                 std::make_shared<comm::Communicator>());
  const auto batch = small_batch(8, 3);
  const auto call = [&] { return optimizer.minimize([&] { return mean_loss(net, batch); }); };
  call();
  EXPECT_EQ(call().call, 2);
  const auto rest = optimizer.end_epoch();
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->call, 2);
  EXPECT_EQ(rest->own_weight, 0) << "its samples were those of the calls";
  EXPECT_EQ(optimizer.counters().calls, 2);
  EXPECT_EQ(call().call, 3);
}

TEST(GradientMergeTest, WithoutAvgGradientsOfThePartsAreSummed) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](const Comm& comm) {
      auto net = small_net();
      auto other = small_net();
      DistributedOptimizer sums(small_optimizer("SGD", net, 0.01),
                                merged({.k_steps = 4, .avg = false}), comm);
      DistributedOptimizer means(small_optimizer("SGD", other, 0.04), merged({.k_steps = 4}), comm);
      const auto batch = small_batch(12, comm->rank());
      sums.minimize(batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      means.minimize(batch,
                     [&](const Batch& micro_batch) { return mean_loss(other, micro_batch); });
      expect_close(copies(net->parameters()), copies(other->parameters()), 1e-5);
    });
  }
}

// Rank 1 does not even start before rank 0 is through with all parts but the last: had those
// communicated, it would wait for ever.
TEST(GradientMergeTest, OnlyTheLastPartCommunicates) {
  std::latch first_is_through(1);
  run_ranks(2, [&](const Comm& comm) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), merged({.k_steps = 4}), comm);
    const auto batch = small_batch(4, comm->rank());
    const auto step = [&] { return optimizer.minimize([&] { return mean_loss(net, batch); }); };
    for (int i = 0; i < 4; ++i) step();  // the first window agrees on the usual weight
    if (comm->rank() == 1) first_is_through.wait();
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(step().updated);
    if (comm->rank() == 0) first_is_through.count_down();
    EXPECT_TRUE(step().updated);
  });
}

TEST(GradientMergeTest, BadUseIsRefusedAndLeavesParametersAlone) {
  auto net = small_net();
  const auto before = copies(net->parameters());
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), merged({.k_steps = 3}),
                                 std::make_shared<comm::Communicator>());
  const auto batch = small_batch(6, 0);
  const auto loss = [&] { return mean_loss(net, batch); };

  struct Whole {
    int64_t size() const { return 6; }
  };
  EXPECT_NE(error_message_of([&] {
              optimizer.minimize(Whole(), [&](const Whole&) { return loss(); });
            }).find("split into 3 micro-batches, and its type has no slice(begin, end)"),
            std::string::npos);
  optimizer.minimize(loss);
  EXPECT_NE(error_message_of([&] {
              optimizer.minimize(batch, [&](const Batch&) { return loss(); });
            }).find("1 of 3 calls of minimize(closure) wait for their update"),
            std::string::npos);
  // A part that throws ends its window: two more parts are not an update, three are.
  EXPECT_EQ(error_message_of<std::runtime_error>(
                [&] { optimizer.minimize([]() -> Loss { throw std::runtime_error("no data"); }); }),
            "no data");
  EXPECT_FALSE(optimizer.minimize(loss).updated);
  EXPECT_FALSE(optimizer.minimize(loss).updated);
  expect_equal(copies(net->parameters()), before);
  EXPECT_TRUE(optimizer.minimize(loss).updated);

  EXPECT_NE(error_message_of([&] { optim::GradientMerge({.k_steps = 0}); }).find("k_steps is 0"),
            std::string::npos);
  EXPECT_NE(error_message_of([&] {
              DistributedOptimizer(small_optimizer("SGD", net, 0.1), merged({.k_steps = 0}),
                                   std::make_shared<comm::Communicator>());
            }).find("gradient_merge_configs.k_steps"),
            std::string::npos);
}

TEST(GradientMergeTest, RanksWithOtherNumbersOfMicroBatchesAreAnErrorOfSyncBatchNorm) {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(2, [&](const Comm& comm) {
    auto net = small_net(/*norm=*/true);
    auto strategy = merged({.micro_batch_size = 4});
    strategy.sync_batch_norm = true;
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), strategy, comm);
    const auto batch = small_batch(comm->rank() == 0 ? 4 : 9, 0);
    const auto text = error_message_of([&] {
      optimizer.minimize(batch,
                         [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
    });
    const std::lock_guard lock(mutex);
    errors.push_back(text);
  });
  for (const auto& text : errors) {
    EXPECT_NE(text.find("3 micro-batches on one rank and 1 on another"), std::string::npos) << text;
  }
}

TEST(GradientMergeTest, WorkingCopiesInBf16AddUpInFloat) {
  torch::nn::Linear net(torch::nn::LinearOptions(4, 3).bias(false));
  ParameterArena arena(net, {.working_dtype = torch::kBFloat16});
  ASSERT_EQ(net->weight.scalar_type(), torch::kBFloat16);
  arena.begin_window();
  for (int part = 0; part < 300; ++part) net->weight.sum().backward();
  arena.end_window();
  // bf16 itself stops counting at 256.
  EXPECT_TRUE(torch::equal(arena.spans()[0].gradient, torch::full({3, 4}, 300.0f)));
}

}  // namespace
}  // namespace fleet
