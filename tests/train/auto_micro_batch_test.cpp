// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/auto_micro_batch.h"

#include <latch>

#include <c10/util/Exception.h>

#include "fleet/core/text/byte_size.h"
#include "fleet/memory/allocator/budget_allocator.h"

#include "tests/support/patience.h"
#include "tests/support/says.h"
#include "tests/train/block_net.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

/// Memory counts, and its budget is `bytes` above what is there.
class Budget {
 public:
  explicit Budget(int64_t bytes) : counting_(memory::BudgetAllocator::cpu()) {
    memory::BudgetAllocator::cpu().counter().set_budget(counter().live() + bytes);
  }
  ~Budget() { counter().set_budget(std::nullopt); }
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  static memory::MemoryCounter& counter() { return memory::BudgetAllocator::cpu().counter(); }

 private:
  memory::BudgetAllocatorScope counting_;
};

constexpr int64_t kPlenty = int64_t{1} << 40;

void run_out() { TORCH_CHECK_WITH(OutOfMemoryError, false, "the test has no memory left"); }

DistributedStrategy parts_of(int64_t samples) {
  return {.gradient_merge = true, .gradient_merge_configs = {.micro_batch_size = samples}};
}

/// Parts above `samples` do not fit: in forward, or in the middle of backward, when the gradients
/// of the last blocks have landed.
std::function<void(BlockNet&)> short_of_memory(int64_t samples, bool in_backward, int* failures) {
  return [=](BlockNet& net) {
    net->after_block = [=](int64_t block, torch::Tensor& x) {
      if (block != 1 || x.size(0) <= samples) return;
      if (!in_backward) {
        ++*failures;
        run_out();
      }
      x.register_hook([=](torch::Tensor gradient) {
        ++*failures;
        run_out();
        return gradient;
      });
    };
  };
}

TEST(AutoMicroBatchTest, GivesWhatTheSmallPartsHadGivenFromTheStart) {
  at::set_num_threads(1);  // small ops, and many
  const Budget budget(kPlenty);
  const std::vector<std::pair<const char*, DistributedStrategy>> strategies = {
      {"alone", {}},
      {"merge", {.gradient_merge = true, .gradient_merge_configs = {.k_steps = 2}}},
      {"bf16", {.amp = true}},
      {"lars", {.lars = true, .lars_configs = {.lars_coeff = 0.05f}}},
      {"recompute",
       {.recompute = true, .recompute_configs = {.checkpoints = {"block.0", "block.2"}}}},
  };
  for (const auto& [name, strategy] : strategies) {
    for (const bool in_backward : {false, true}) {
      SCOPED_TRACE(name);
      // 18 does not divide evenly: 18, 9, 4 samples.
      BlockTraining setup{.strategy = strategy, .net = {.dropout = 0.3}, .samples = 18};
      setup.strategy.gradient_merge = true;  // there is batch norm
      int failures = 0;
      setup.prepare = short_of_memory(4, in_backward, &failures);
      const auto outcome = train_blocks(setup);
      EXPECT_EQ(failures, strategy.gradient_merge ? 1 : 2) << "only the first update has to learn";
      EXPECT_EQ(outcome.reports[0].micro_batches, 5);
      EXPECT_EQ(outcome.reports[3].micro_batches, 5);

      setup.prepare = nullptr;
      setup.strategy.gradient_merge = true;
      setup.strategy.gradient_merge_configs = {.micro_batch_size = 4};
      expect_same(outcome, train_blocks(setup));
    }
  }
}

TEST(AutoMicroBatchTest, ARealBudgetIsKept) {
  BlockTraining setup{.strategy = {.gradient_merge = true},  // there is batch norm
                      .net = {.width = 128, .dropout = 0.3},
                      .samples = 512,
                      .steps = 2};
  const auto peak = [&](int64_t samples) {
    auto small = setup;
    small.strategy = parts_of(samples);
    const memory::BudgetAllocatorScope counting(memory::BudgetAllocator::cpu());
    const auto before = Budget::counter().live();
    Budget::counter().reset_peaks();
    train_blocks(small);
    return Budget::counter().peak() - before;
  };
  const auto fits = peak(64), too_much = peak(128);
  ASSERT_GT(too_much, fits + 64 * 1024);
  const auto room = (fits + too_much) / 2;
  Outcome outcome;
  {
    const Budget budget(room);
    const auto before = Budget::counter().live();
    Budget::counter().reset_peaks();
    outcome = train_blocks(setup);
    EXPECT_LE(Budget::counter().peak() - before, room);
  }
  EXPECT_EQ(outcome.reports[0].micro_batches, 8);
  setup.strategy = parts_of(64);
  expect_same(outcome, train_blocks(setup));
}

TEST(AutoMicroBatchTest, BatchNormIsNotSplitUnlessMergingWasAskedFor) {
  const Budget budget(kPlenty);
  int failures = 0;
  BlockTraining setup;
  setup.prepare = short_of_memory(4, /*in_backward=*/false, &failures);
  const auto text = error_message_of<UsageError>([&] { train_blocks(setup); });
  EXPECT_TRUE(says(text, "the batch norm in 'norms.0' would see other batches",
                   "switch gradient_merge on"));
  EXPECT_EQ(failures, 1);
}

TEST(AutoMicroBatchTest, WithoutAvgTheUpdateIsAsLargeAsAsked) {
  const Budget budget(kPlenty);
  BlockTraining setup{
      .strategy = {.gradient_merge = true, .gradient_merge_configs = {.k_steps = 2, .avg = false}},
      .net = {.norm = false},
      .lr = 0.01};
  const auto expected = train_blocks(setup);
  int failures = 0;
  setup.prepare = short_of_memory(2, /*in_backward=*/true, &failures);
  expect_close(train_blocks(setup).parameters, expected.parameters);
  EXPECT_EQ(failures, 2);
}

TEST(AutoMicroBatchTest, SaysOnceWhatItDid) {
  const Budget budget(kPlenty);
  int failures = 0;
  BlockTraining setup{.strategy = {.gradient_merge = true}};
  setup.prepare = short_of_memory(5, /*in_backward=*/false, &failures);
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  train_blocks(setup);
  const auto text =
      ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
  const std::string line =
      "micro-batches of 16 samples did not fit: from now on a batch is split into micro-batches of "
      "at most 4";
  const auto first = text.find(line);
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("did not fit", first + line.size()), std::string::npos) << text;
}

TEST(AutoMicroBatchTest, OneSampleThatDoesNotFitIsAnErrorWithTheAllocatorsText) {
  const Budget budget(kPlenty);
  BlockNet net{BlockNetOptions{.norm = false}};
  DistributedOptimizer optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}), {},
      std::make_shared<comm::Communicator>());
  const auto before = copies(net->parameters());
  int failures = 0;
  short_of_memory(0, /*in_backward=*/true, &failures)(net);
  const auto step = [&] {
    return optimizer.minimize(small_batch(8, 0),
                              [&](const Batch& micro_batch) { return net->loss(micro_batch); });
  };
  EXPECT_TRUE(says(error_message_of(step), "[memory] one sample does not fit",
                   "the test has no memory left",
                   "fix: free memory on this machine, train within a memory budget"));
  EXPECT_EQ(failures, 4);  // 8, 4, 2, 1
  expect_equal(copies(net->parameters()), before);
  net->after_block = nullptr;
  EXPECT_TRUE(step().updated);
}

// 1024 micro-batches of one sample would fit, and take forever.
TEST(AutoMicroBatchTest, IsNotSplitIntoMoreThan256MicroBatches) {
  const Budget budget(kPlenty);
  BlockNet net{BlockNetOptions{.norm = false}};
  DistributedOptimizer optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}), {},
      std::make_shared<comm::Communicator>());
  const auto step = [&] {
    return optimizer.minimize(small_batch(1024, 0),
                              [&](const Batch& micro_batch) { return net->loss(micro_batch); });
  };
  int failures = 0;
  short_of_memory(3, /*in_backward=*/false, &failures)(net);
  EXPECT_TRUE(says(error_message_of<UsageError>(step), "it is split into 256 micro-batches already",
                   "the test has no memory left"));
  EXPECT_EQ(failures, 9);  // of 1024, 512, ... 4 samples
  short_of_memory(4, /*in_backward=*/false, &failures)(net);
  EXPECT_EQ(step().micro_batches, 256);
}

// Without a budget there is nothing to go back to, and a batch without slice() cannot be split: the
// allocator's error passes.
TEST(AutoMicroBatchTest, WhatCannotBeSplitPassesTheErrorOn) {
  int failures = 0;
  BlockTraining setup{.strategy = {.gradient_merge = true}};
  setup.prepare = short_of_memory(4, /*in_backward=*/true, &failures);
  EXPECT_NE(error_message_of<c10::OutOfMemoryError>([&] { train_blocks(setup); }), "");
  EXPECT_EQ(failures, 1);

  const Budget budget(kPlenty);
  BlockNet net{BlockNetOptions{}};
  DistributedOptimizer optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}), {},
      std::make_shared<comm::Communicator>());
  short_of_memory(4, /*in_backward=*/true, &failures)(net);
  struct Whole {
    int64_t size() const { return 16; }
  };
  const auto loss = [&] { return net->loss(small_batch(16, 0)); };
  EXPECT_NE(error_message_of<c10::OutOfMemoryError>(
                [&] { optimizer.minimize(Whole(), [&](const Whole&) { return loss(); }); }),
            "");
  EXPECT_NE(error_message_of<c10::OutOfMemoryError>([&] { optimizer.minimize(loss); }), "");
}

// One rank splits, the other does not; the first backward of a size sends nothing before it is
// over, so that even its last part can be taken back.
TEST(AutoMicroBatchTest, ARankSplitsOnItsOwn) {
  const Budget budget(kPlenty);
  for (const bool in_backward : {false, true}) {
    int failures = 0;
    const BlockTraining merged{.strategy = {.gradient_merge = true}};  // there is batch norm
    const auto outcome = train_blocks_on(2, merged, [&](BlockTraining& own, int rank) {
      if (rank == 0) own.prepare = short_of_memory(4, in_backward, &failures);
    });
    EXPECT_EQ(outcome[0].reports[3].micro_batches, 4);
    EXPECT_EQ(outcome[1].reports[3].micro_batches, 1);
    expect_same(outcome, train_blocks_on(2, merged, [](BlockTraining& own, int rank) {
                  if (rank == 0) own.strategy = parts_of(4);
                }));
    EXPECT_EQ(failures, 2);
  }
}

// With sync_batch_norm the other rank has to take part in the forward, and then waits in vain until
// its time is over; else it need not even begin.
TEST(AutoMicroBatchTest, WhatHasBeenSentIsNotTakenBack) {
  const Budget budget(kPlenty);
  for (const bool sync : {false, true}) {
    std::latch failed(1);
    const auto body = [&](const Comm& comm) {
      BlockNet net{BlockNetOptions{}};
      DistributedOptimizer optimizer(
          std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}),
          {.sync_batch_norm = sync}, comm);
      const auto step = [&] {
        return optimizer.minimize(small_batch(8, 0),
                                  [&](const Batch& micro_batch) { return net->loss(micro_batch); });
      };
      EXPECT_TRUE(step().updated);
      if (comm->rank() == 0) {
        int failures = 0;
        short_of_memory(4, /*in_backward=*/true, &failures)(net);
        const auto text = error_message_of<std::exception>(step);
        failed.count_down();
        EXPECT_EQ(failures, 1);
        EXPECT_TRUE(says(text, "rank 0 is out of memory", "cannot be started again",
                         "the test has no memory left", "gradient_merge_configs.micro_batch_size"))
            << text;
        return;
      }
      if (sync) {
        EXPECT_NE(error_message_of<std::exception>(step), "");
      }
      failed.wait();
    };
    run_ranks(2, body, {.timeout = launch::patient(std::chrono::seconds(sync ? 4 : 20))});
  }
}

}  // namespace
}  // namespace fleet
