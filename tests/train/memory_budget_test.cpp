// SPDX-License-Identifier: Apache-2.0
// recompute_configs.memory_budget: one number, and training stays within it, bit for bit what it
// was.

#include <atomic>
#include <map>
#include <regex>

#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/data/data_loader.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"
#include "tests/train/budget_training.h"

namespace fleet::testing {
namespace {

using memory::BudgetAllocator;

constexpr int64_t kManySamples = 8192;  // activations of 2 MiB, so that they may leave

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
    EXPECT_EQ(ours.last.micro_batches, 1);
    EXPECT_GT(ours.last.memory.evicted, 0);
  }
}

TEST(MemoryBudget, ThatIsLargeEnoughLeavesTheForwardAlone) {
  const auto plain = train({});
  const auto ours = train(within(plain.peak * 2));
  expect_equal(ours, plain);
  EXPECT_EQ(ours.last.memory.evicted, 0);
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
  auto strategy = within(plain.floor + (plain.peak - plain.floor) / 24);
  strategy.gradient_merge = true;
  const auto ours = train(strategy);
  EXPECT_GT(ours.last.micro_batches, 1);
  EXPECT_LE(ours.peak, plain.floor + (plain.peak - plain.floor) / 24);
}

// Smaller parts would give batch norm other batches: nobody asked for that.
TEST(MemoryBudget, BatchNormIsNotSplitBehindTheUsersBack) {
  const auto plain = train({});
  try {
    train(within(plain.floor + (plain.peak - plain.floor) / 24));
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), "is too small", "takes at least", "set memory_budget to"));
  }
}

// The milliseconds that each size of micro-batch takes for a sample by its last plan.
std::map<int64_t, double> predicted_times(const std::string& text) {
  std::map<int64_t, double> times;
  const std::regex line(R"(a micro-batch of (\d+) samples within .*, ([0-9.e+-]+) ms a sample)");
  for (std::sregex_iterator at(text.begin(), text.end(), line), end; at != end; ++at) {
    times[std::stoll((*at)[1])] = std::stod((*at)[2]);
  }
  return times;
}

// The size that is kept is no slower by its plan than twice and half of it, and trains as if each
// update had been asked to use its size.
void expect_best_size(const Trained& plain, double share, int64_t most) {
  auto strategy = within(share_of(plain, share));
  strategy.gradient_merge = true;
  Trained chosen;
  const auto text = printed_by([&] { chosen = train(strategy, /*updates=*/24); });
  const auto times = predicted_times(text);
  const auto size_of = [](int64_t parts) { return 1024 / parts; };
  const auto size = size_of(chosen.last.micro_batches);
  ASSERT_EQ(size * chosen.last.micro_batches, 1024);
  ASSERT_LE(size, most) << text;
  ASSERT_TRUE(times.contains(size)) << text;
  if (times.contains(2 * size)) {
    EXPECT_LE(times.at(size), times.at(2 * size)) << text;
  } else if (size < 1024) {
    EXPECT_TRUE(says(text, format("micro-batches of {} samples did not fit", 2 * size)) ||
                says(text, format("no plan holds a micro-batch of {} samples", 2 * size)) ||
                says(text, "did not fit", format("at most {}\n", size)));
  }
  if (times.contains(size / 2)) {
    EXPECT_GE(times.at(size / 2), 0.97 * times.at(size)) << text;
  } else if (chosen.last.memory.evicted > 0) {  // otherwise smaller ones cannot be quicker
    EXPECT_TRUE(says(text, format("no plan holds a micro-batch of {} samples", size / 2)));
  }

  // Without a budget, by the sizes that were chosen.
  DeepTraining asked{.strategy = {.gradient_merge = true}, .updates = 24};
  asked.before_update = [&](DistributedOptimizer& optimizer, int update) {
    auto counters = optimizer.counters();
    counters.micro_batch_preferred = size_of(chosen.micro_batches[static_cast<size_t>(update)]);
    optimizer.set_counters(counters);
  };
  const auto expected = train_deep(asked);
  EXPECT_EQ(expected.micro_batches, chosen.micro_batches);
  expect_equal(chosen, expected);

  strategy.gradient_merge_configs.k_steps = 4;
  EXPECT_EQ(train(strategy).last.micro_batches, 4);
}

TEST(MemoryBudget, ChoosesTheSizeOfMicroBatchesWhereMergingIsLeftToIt) {
  const auto plain = train({});
  expect_best_size(plain, 0.3, 1024);
  expect_best_size(plain, 0.12, 512);  // no plan holds the whole batch
}

// Whether it is used depends on how quick the disk is.
TEST(MemoryBudget, AFileIsWithinTheBudgetToo) {
  at::set_num_threads(1);
  constexpr int64_t kWidth = 256, kRows = 2048, kLayers = 12;
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  auto& counter = BudgetAllocator::cpu().counter();
  struct Run {
    UpdateReport last;
    int64_t live = 0, peak = 0;  // of the last update
    int64_t staging = 0;
    std::vector<torch::Tensor> values;
  };
  const auto run = [&](const DistributedStrategy& strategy) {
    torch::manual_seed(1);
    torch::nn::Sequential net;
    for (int64_t i = 0; i < kLayers; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
    auto optimizer = distributed_optimizer(
        std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}), strategy);
    const auto input = torch::randn({kRows, kWidth});
    Run result;
    for (int update = 0; update < 5; ++update) {
      result.live = counter.live();
      counter.reset_peaks();
      result.last = optimizer.minimize([&] {
        auto x = input;
        for (auto& layer : *net) {
          x = layer.forward(x).tanh();
        }
        return x.square().mean();
      });
      result.peak = counter.peak();
      for (const auto& use : counter.largest_tags(SIZE_MAX)) {
        if (use.name == allocation::kStaging) result.staging = use.bytes;
      }
    }
    for (const auto& parameter : net->parameters()) {
      result.values.push_back(parameter.detach().clone());
    }
    return result;
  };
  const auto plain = run({});
  const auto budget = plain.live + (plain.peak - plain.live) * 3 / 4;
  auto strategy = within(budget);
  strategy.recompute_configs.enable_offload = true;
  const auto offloaded = run(strategy);
  EXPECT_EQ(offloaded.last.memory.offloaded_bytes, offloaded.last.memory.fetched_bytes);
  EXPECT_LE(offloaded.peak, budget);
  EXPECT_LE(offloaded.last.memory.predicted_peak, budget);
  if (offloaded.last.memory.offloaded_bytes > 0) {
    // A 128th of the budget.
    EXPECT_NEAR(static_cast<double>(offloaded.staging), static_cast<double>(budget) / 128, 4096);
  }
  for (size_t i = 0; i < plain.values.size(); ++i) {
    EXPECT_TRUE(offloaded.values[i].equal(plain.values[i])) << i;
  }
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

// Small nets have nothing that may leave; the file must not take what the plan needs.
TEST(MemoryBudget, WithOffloadIsNeverWorseThanWithout) {
  const auto plain = train({});
  for (const double share : {0.75, 0.5}) {
    auto strategy = within(share_of(plain, share));
    const auto without = train(strategy);
    strategy.recompute_configs.enable_offload = true;
    Trained with;
    const auto text = printed_by([&] { with = train(strategy); });
    SCOPED_TRACE(share);
    EXPECT_LE(with.last.micro_batches, without.last.micro_batches) << text;
    EXPECT_LE(with.peak, share_of(plain, share));
    EXPECT_EQ(with.last.memory.offloaded_bytes, 0);
    EXPECT_TRUE(says(text,
                     "[offload] 0 B offloaded: no value of at least 1.00 MiB could wait in "
                     "the file long enough"));
    if (with.last.micro_batches == 1) expect_equal(with, plain);
  }
  auto plenty = within(2 * plain.peak);
  plenty.recompute_configs.enable_offload = true;
  EXPECT_TRUE(says(printed_by([&] { train(plenty); }),
                   "[offload] 0 B offloaded: everything fits without it"));
}

// The budget is Fleet's promise for its own calls; an evaluation is the program's own.
TEST(MemoryBudget, IsInForceInsideOfMinimizeOnly) {
  const auto plain = train({});
  const auto budget = share_of(plain, 1.0 / 24);
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  auto& counter = BudgetAllocator::cpu().counter();
  auto net = deep_net();
  auto strategy = within(budget);
  strategy.gradient_merge = true;
  auto optimizer = distributed_optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}), strategy);
  const auto train_epoch = [&] {
    for (int i = 0; i < 3; ++i) {
      const auto batch = small_batch(1024, i);
      counter.reset_peaks();
      const auto report = optimizer.minimize(
          batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      EXPECT_GT(report.micro_batches, 1);
      EXPECT_LE(counter.peak(), budget);
    }
  };
  train_epoch();
  {
    net->eval();
    const torch::NoGradGuard no_grad;
    counter.reset_peaks();
    const auto batch = small_batch(8192, 0);
    EXPECT_NO_THROW(mean_loss(net, batch).item<double>());
    EXPECT_GT(counter.peak(), budget) << "the test proves nothing";
    EXPECT_FALSE(counter.budget().has_value());
    net->train();
  }
  train_epoch();
}

// The closure that fails leaves no budget behind.
// The loader's thread makes batches while a step runs, which may have taken all of the budget. The
// batch is made between two steps then, and every sample comes once.
TEST(MemoryBudget, ABatchThatDoesNotFitBesideAStepIsMadeBetweenTwo) {
  static constexpr int64_t kSamples = 64;
  struct Steps {
    std::atomic<int64_t> begun = 0, failed = 0;
  };
  struct Samples : Dataset {
    Samples(Steps& steps, int64_t bytes) : steps(steps), bytes(bytes) {}
    int64_t size() const override { return 4 * kSamples; }
    Batch get(std::span<const int64_t> indices, int64_t) const override {
      const auto batch = indices.front() / kSamples;
      if (batch > 0 && steps.failed < batch) {
        steps.begun.wait(batch - 1);  // until the step before it runs
        try {
          torch::empty({bytes}, torch::kByte);
        } catch (const c10::OutOfMemoryError&) {
          ++steps.failed;
          steps.failed.notify_all();
          throw;
        }
      }
      const auto all = small_batch(size(), 1);
      return {all.data.narrow(0, indices.front(), std::ssize(indices)),
              all.target.narrow(0, indices.front(), std::ssize(indices))};
    }
    Steps& steps;
    int64_t bytes;
  };
  const auto train_from = [](const DistributedStrategy& strategy, int64_t bytes) {
    Steps steps;
    auto net = small_net();
    auto optimizer = distributed_optimizer(
        std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}), strategy);
    DataLoader data(std::make_shared<Samples>(steps, bytes),
                    {.batch_size = kSamples, .shuffle = false, .world_size = 1, .prefetch = 1});
    for (const auto& batch : data.epoch(0)) {
      optimizer.minimize(batch, [&](const Batch& micro_batch) {
        const int64_t begun = ++steps.begun;
        steps.begun.notify_all();
        if (bytes > 0 && begun < data.batches_per_epoch()) steps.failed.wait(begun - 1);
        return mean_loss(net, micro_batch);
      });
    }
    EXPECT_EQ(steps.begun, 4);
    EXPECT_EQ(steps.failed, bytes > 0 ? 3 : 0);
    return copies(net->parameters());
  };
  const auto plain = train_from({}, 0);
  expect_equal(train_from(within("64MiB"), 128 << 20), plain);
}

TEST(MemoryBudget, EndsWithACallThatThrows) {
  auto net = deep_net();
  auto optimizer = distributed_optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}), within("1GiB"));
  const auto fail = [&] {
    optimizer.minimize(small_batch(8, 0), [&](const Batch&) -> torch::Tensor {
      EXPECT_EQ(BudgetAllocator::cpu().counter().budget(), int64_t{1} << 30);
      throw Error("test", "no loss today");
    });
  };
  EXPECT_TRUE(says(error_message_of(fail), "no loss today"));
  EXPECT_FALSE(BudgetAllocator::cpu().counter().budget().has_value());
}

TEST(MemoryBudget, MayBeAShareOfPlainTraining) {
  const auto plain = train({});
  Trained ours;
  const auto text = printed_by([&] { ours = train(within("50% of plain")); });
  expect_equal(ours, plain);
  const auto half = static_cast<double>(plain.peak) / 2;
  EXPECT_NEAR(static_cast<double>(ours.last.memory.budget), half, 0.02 * half) << text;
  EXPECT_LE(ours.peak, ours.last.memory.budget);
  EXPECT_GT(ours.last.memory.evicted, 0);
  EXPECT_TRUE(says(text, "[memory] plain training of a micro-batch of 1024 samples takes ",
                   ": the budget is 50% of that, "));
}

// Two ranks on this host share what there is.
TEST(MemoryBudget, InPercentIsSharedAmongTheRanksOfAHost) {
  const auto text = printed_by([&] {
    run_ranks(2, [&](const Comm& comm) {
      auto net = small_net();
      DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), within("10%"), comm);
      const auto batch = small_batch(8, comm->rank());
      optimizer.minimize(batch,
                         [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
    });
  });
  EXPECT_TRUE(says(text, "[memory] the budget of this rank is ", ": 10% of ", "shared by 2 ranks"));
}

// ---- too small

std::string too_small(const DeepTraining& setup) {
  return error_message_of([&] { train_deep(setup); });
}

TEST(MemoryBudget, ThatIsTooSmallSaysTheLeastThatWouldDoAndWhatHoldsIt) {
  const auto plain = train_deep({.samples = 2, .norm = false});
  DeepTraining setup{.strategy = within(plain.floor / 2), .samples = 2, .norm = false};
  const auto text = too_small(setup);
  EXPECT_TRUE(says(text, "[memory] the memory budget of ",
                   " is too small: a micro-batch of 1 sample takes at least ",
                   "are live before the forward (", "parameters ", "gradients ", "optimizer state ",
                   "and the peak is in the ", "fix: set memory_budget to at least "));
  EXPECT_EQ(times_in(text, "fix:"), 1) << text;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, std::regex("at least ([0-9.]+[A-Za-z]+), or")));
  const auto least = byte_size(found[1].str()).value_or(0);
  ASSERT_GT(least, plain.floor / 2);
  // That much does, and not much less.
  setup.strategy = within(found[1].str());
  const auto ours = train_deep(setup);
  EXPECT_LE(ours.peak, least);
  setup.strategy = within(least * 95 / 100);
  EXPECT_NE(too_small(setup), "");
}

// The first update makes the optimizer's state, here beyond the budget: it is completed all the
// same, and the next forward says what is missing before anything has changed.
TEST(MemoryBudget, AnUpdateIsNeverLeftHalfDone) {
  at::set_num_threads(1);
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  const auto make_net = [] {
    torch::manual_seed(3);
    torch::nn::Sequential net;
    for (int i = 0; i < 4; ++i) net->push_back(torch::nn::Linear(512, 512));  // 1 MiB each
    return net;
  };
  const auto x = torch::ones({1, 512});
  const auto loss_of = [&](torch::nn::Sequential& net) { return net->forward(x).square().mean(); };
  auto plain = make_net();
  torch::optim::RMSprop plain_rule(plain->parameters(), 0.01);
  loss_of(plain).backward();
  plain_rule.step();

  auto net = make_net();
  torch::optim::RMSprop rule(net->parameters(), 0.01);
  const auto before = BudgetAllocator::cpu().counter().live();
  auto optimizer = distributed_optimizer(net, rule, within(before + (int64_t{7} << 20)));
  EXPECT_TRUE(optimizer.minimize([&] { return loss_of(net); }).updated);
  expect_equal(copies(net->parameters()), copies(plain->parameters()));
  const auto text = error_message_of([&] { optimizer.minimize([&] { return loss_of(net); }); });
  EXPECT_TRUE(says(text, " is too small: a micro-batch takes at least ", "optimizer state 4.0",
                   "fix: set memory_budget to at least "));
  expect_equal(copies(net->parameters()), copies(plain->parameters()));
}

// The eager form: the user's own forward cannot be run again.
struct EagerTraining {
  DistributedStrategy strategy = {};
  int updates = 4;
  int64_t samples = 256;
};

// The peaks of all updates but the first.
int64_t train_eagerly(const EagerTraining& setup) {
  at::set_num_threads(1);
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  auto& counter = BudgetAllocator::cpu().counter();
  auto net = deep_net(/*norm=*/false);
  auto optimizer = distributed_optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}), setup.strategy);
  int64_t peak = 0;
  for (int update = 0; update < setup.updates; ++update) {
    const auto batch = small_batch(setup.samples, update);
    counter.reset_peaks();
    Loss loss;
    {
      const auto scope = optimizer.forward(setup.samples);
      loss = mean_loss(net, batch);
    }
    optimizer.backward(loss);
    loss = {};
    optimizer.step();
    if (update > 0) peak = std::max(peak, counter.peak());
  }
  return peak;
}

TEST(MemoryBudget, ThatIsTooSmallForTheEagerFormSaysTheLeastThatWouldDo) {
  const auto plain = train_deep({.samples = 256, .norm = false});
  const auto text =
      error_message_of<UsageError>([&] { train_eagerly({.strategy = within(plain.floor)}); });
  EXPECT_TRUE(says(text, "[memory] the memory budget of ",
                   " is too small: a micro-batch of 256 samples takes at least ",
                   "are live before the forward (", "parameters ", "and the peak is in the ",
                   "fix: set memory_budget to at least "));
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, std::regex("to at least ([0-9.]+[A-Za-z]+)"))) << text;
  const auto least = byte_size(found[1].str()).value_or(0);
  ASSERT_GT(least, plain.floor);
  EXPECT_LE(train_eagerly({.strategy = within(found[1].str())}), least);

  // As a share of plain training it is known only after a step, and the least with it.
  const auto share = error_message_of<c10::OutOfMemoryError>([&] {
    train_eagerly({.strategy = within(format("{}% of plain", 100 * plain.floor / plain.peak))});
  });
  EXPECT_TRUE(says(share, " is too small: a micro-batch of 256 samples takes at least ",
                   "and the peak is in the ", "fix: set memory_budget to at least "));
  EXPECT_EQ(times_in(share, "fix:"), 1) << share;
}

// A closure cannot be split: the whole of it has to fit.
TEST(MemoryBudget, ThatIsTooSmallForAClosureSaysSoToo) {
  at::set_num_threads(1);
  const auto plain = train({});
  const memory::BudgetAllocatorScope counting(BudgetAllocator::cpu());
  auto net = deep_net();
  auto optimizer = distributed_optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.01}),
      within(share_of(plain, 0.02)));
  const auto batch = small_batch(1024, 0);
  const auto text =
      error_message_of([&] { optimizer.minimize([&] { return mean_loss(net, batch); }); });
  EXPECT_TRUE(says(text, " is too small: a micro-batch takes at least ",
                   "fix: set memory_budget to at least "));
}

}  // namespace
}  // namespace fleet::testing
