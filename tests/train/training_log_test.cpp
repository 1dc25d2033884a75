// SPDX-License-Identifier: Apache-2.0
#include <regex>

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "fleet/optim/sgd.h"
#include "fleet/train/program/train_epochs.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

// What `body` prints on standard output.
template <typename Body>
std::string printed(Body&& body) {
  ::testing::internal::CaptureStdout();
  body();
  return ::testing::internal::GetCapturedStdout();
}

UpdateReport report_of(int64_t call, double loss) {
  return {.call = call,
          .loss = loss,
          .weight = 8,
          .own_loss = loss,
          .own_weight = 8,
          .samples = 8,
          .seconds = 0.5,
          .total_seconds = 0.5 * static_cast<double>(call)};
}

int64_t count_of(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), regex),
                       std::sregex_iterator());
}

TEST(TrainingLogTest, PrintsTheGuidesLinesForEveryFifthBatch) {
  TrainingLog log(RunOptions{});
  WeightedMean acc1, acc5;
  const auto text = printed([&] {
    log.begin_epoch(2);
    for (int64_t batch = 0; batch < 11; ++batch) {
      acc1.add(0.25, 3);
      acc1.add(0.75, 1);
      acc5.add(1.0, 4);
      log.step(report_of(batch + 1, 1.5), acc1, acc5);
    }
  });
  EXPECT_EQ(count_of(text, R"(\[Epoch 2, batch (0|5|10)\] loss: 1.50000, acc1: 0.37500, acc5: )"
                           R"(1.00000\n)"),
            3)
      << text;
  EXPECT_EQ(count_of(text, R"(worker_index: 0, step5 cost = 1.500000, total time cost = 3.000000, )"
                           R"(step per second: 2.000000, speed: 2.000000\n)"),
            1)
      << text;
  EXPECT_EQ(count_of(text, "\n"), 6) << text;
}

TEST(TrainingLogTest, TheEpochsLineHasLossSpeedAndMemory) {
  TrainingLog log(RunOptions{.log_every = 100});
  const auto text = printed([&] {
    log.begin_epoch(0);
    log.step(report_of(1, 1.0));
    auto skipped = report_of(2, std::nan(""));
    skipped.skipped = true;
    log.step(skipped);
    log.step(report_of(3, 3.0));
    log.end_epoch();
  });
  EXPECT_EQ(count_of(text, R"(\[train\] epoch 0: loss 2.00000, 16 samples in [0-9.]+ s, )"
                           R"([0-9.]+ samples/s, memory [0-9.]+ [MG]iB\n)"),
            1)
      << text;
}

TEST(TrainingLogTest, AWindowCountsOnceAndWhole) {
  TrainingLog log(RunOptions{.log_every = 100, .max_updates = 2});
  auto part = report_of(1, 1.0);
  part.in_window = true;
  auto last = report_of(2, 2.0);  // of both: the mean that the update reports
  last.own_loss = 3.0;
  last.weight = 16;
  const auto line = [](const std::string& text) { return text.substr(text.find("[train]")); };
  const auto text = printed([&] {
    log.begin_epoch(0);
    for (const auto& report : {part, last, part}) log.step(report);
    EXPECT_FALSE(log.is_over()) << "one update so far";
    auto skipped = last;
    skipped.skipped = true;
    skipped.own_loss = std::nan("");
    log.step(skipped);
    EXPECT_TRUE(log.is_over());
    log.step(part);
    log.end_epoch();
  });
  EXPECT_TRUE(line(text).starts_with("[train] epoch 0: loss 2.00000, 16 samples in ")) << text;
  const auto next = printed([&] {
    log.begin_epoch(1);
    log.step(last);
    log.end_epoch();
  });
  EXPECT_TRUE(line(next).starts_with("[train] epoch 1: loss 2.00000, 16 samples in "))
      << "the window went on into this epoch: " << next;
}

TEST(TrainingLogTest, ARestThatWasDroppedDoesNotCount) {
  auto part = report_of(1, 5.0);
  part.in_window = true;
  for (const bool is_dropped : {false, true}) {
    TrainingLog log(RunOptions{.log_every = 100});
    const auto text = printed([&] {
      log.begin_epoch(0);
      log.step(report_of(1, 1.0));
      log.step(part);
      log.end_epoch(is_dropped ? std::nullopt : std::optional(UpdateReport{.updated = true}));
    });
    EXPECT_TRUE(says(text, is_dropped ? "epoch 0: loss 1.00000, 8 samples in "
                                      : "epoch 0: loss 3.00000, 16 samples in "));
  }
}

// Sums of the optimizer's own reports, through a window that the end of the epoch cuts short.
TEST(TrainingLogTest, CallsOfMinimizeAreCountedOnce) {
  torch::nn::Linear net(2, 1);
  auto optimizer =
      distributed_optimizer(optim::SGD(net, {.lr = 0}),
                            {.gradient_merge = true, .gradient_merge_configs = {.k_steps = 4}});
  TrainingLog log(RunOptions{.log_every = 100, .max_updates = 3});
  const auto text = printed([&] {
    log.begin_epoch(0);
    for (int call = 0; call < 10; ++call) {
      log.step(optimizer.minimize([&] {
        return net->forward(torch::zeros({3, 2})).sum() * 0 + static_cast<double>(call);
      }));
    }
    EXPECT_FALSE(log.is_over()) << "two updates";
    log.end_epoch(optimizer.end_epoch());
  });
  EXPECT_TRUE(says(text, "[train] epoch 0: loss 4.50000, 10 calls of minimize in "));
}

TEST(TrainingLogTest, LocalSgdsBatchesAreThisRanksOwn) {
  TrainingLog log(RunOptions{.log_every = 1});
  WeightedMean acc1, acc5;
  auto synced = report_of(1, 1.5);
  synced.own_loss = 2.5;
  synced.sync_every = 16;
  synced.synced = true;
  const auto text = printed([&] {
    log.begin_epoch(0);
    for (int batch = 0; batch < 2; ++batch) {
      acc1.add(0.25, 8);
      log.step(synced, acc1, acc5);
    }
  });
  EXPECT_EQ(count_of(text, R"(\[Epoch 0, batch [01]\] loss: 2.50000, acc1: 0.25000)"), 2) << text;
  EXPECT_EQ(count_of(text, R"(\[train\] local SGD: the lines of batches are about rank 0 alone)"),
            1)
      << text;
}

class TrainEpochsTest : public ::testing::Test {
 protected:
  /// The batches 1, 2 and 3 in each epoch, for 5 updates in all.
  std::string train(TrainingLog& log, Snapshots& snapshots) {
    return printed([&] {
      train_epochs(
          10, optimizer_, log, snapshots, [&](int64_t) -> const auto& { return batches_; },
          [&](int batch) {
            seen_.push_back(batch);
            log.step(report_of(1, 1));
          },
          [&](int64_t epoch) { tested_.push_back(epoch); });
    });
  }

  torch::nn::Linear net_{2, 2};
  DistributedOptimizer optimizer_ = distributed_optimizer(optim::SGD(net_, {.lr = 0.1}));
  const std::vector<int> batches_ = {1, 2, 3};
  std::vector<int> seen_;
  std::vector<int64_t> tested_;
};

TEST_F(TrainEpochsTest, EndsAfterSoManyUpdatesAndTestsAllTheSame) {
  TrainingLog log(RunOptions{.max_updates = 5});
  Snapshots none(optimizer_, {});
  train(log, none);
  EXPECT_EQ(seen_, (std::vector<int>{1, 2, 3, 1, 2}));
  EXPECT_EQ(tested_, (std::vector<int64_t>{0, 1}));
}

TEST_F(TrainEpochsTest, CountsTheUpdatesOfTheRunBefore) {
  TrainingLog log(RunOptions{.max_updates = 5}, 3);
  Snapshots none(optimizer_, {});
  train(log, none);
  EXPECT_EQ(seen_, (std::vector<int>{1, 2}));
}

TEST_F(TrainEpochsTest, SaysThatNothingIsLeftToTrain) {
  TrainingLog more(RunOptions{.max_updates = 5}, 4), done(RunOptions{.max_updates = 5}, 6);
  Snapshots none(optimizer_, {});
  EXPECT_EQ(count_of(train(more, none), "nothing is left"), 0);
  seen_.clear();
  EXPECT_TRUE(says(train(done, none),
                   "[train] nothing is left to train: 6 updates were made before, and --epochs 10, "
                   "--max_updates 5 ask for no more\n"));
  EXPECT_TRUE(seen_.empty());
}

TEST_F(TrainEpochsTest, SavesAtTheEndOfEpochs) {
  const TemporaryFolder folder;
  TrainingLog log(RunOptions{.max_updates = 5});
  Snapshots snapshots(optimizer_, {.snapshot_dir = folder.path()});
  train(log, snapshots);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "step-00000000" / "model.safetensors"));
}

TEST(RunOptionsTest, CountsUpdates) {
  EXPECT_EQ(RunOptions{}.updates(70), 70);
  EXPECT_EQ(RunOptions{.max_updates = 50}.updates(70), 50);
  EXPECT_EQ(RunOptions{.max_updates = 100}.updates(70), 70);
  EXPECT_EQ(RunOptions{.warmup = 0.25}.warmup_updates(70), 18);
}

}  // namespace
}  // namespace fleet
