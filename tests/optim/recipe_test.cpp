// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/schedule/recipe.h"

#include <cmath>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/support/error_of.h"

namespace fleet::optim {
namespace {

using testing::error_message_of;

std::string refusal(std::string_view name, const RecipeOptions& options) {
  return error_message_of([&] { recipe(name, options); });
}

TEST(RecipeTest, MlperfChoosesByBatch) {
  struct Row {
    int64_t batch;
    double lr;
    int64_t warmup_epochs;
  };
  for (const auto& row : {Row{256, 10, 5}, Row{16383, 10, 5}, Row{16384, 25, 5}, Row{32767, 25, 5},
                          Row{32768, 31.2, 25}, Row{65536, 31.2, 25}}) {
    const auto lars =
        recipe("lars-mlperf", {.global_batch = row.batch, .updates_per_epoch = 40, .epochs = 64});
    EXPECT_EQ(lars.peak_lr, row.lr) << row.batch;
    EXPECT_EQ(lars.warmup_updates, row.warmup_epochs * 40) << row.batch;
    EXPECT_EQ(lars.total_updates, 64 * 40) << row.batch;
    EXPECT_EQ(lars.schedule(0), 0) << row.batch;
    EXPECT_EQ(lars.schedule(lars.warmup_updates), row.lr) << row.batch;
    EXPECT_DOUBLE_EQ(lars.schedule(lars.warmup_updates / 2), row.lr / 2) << row.batch;
  }
}

// The reference: end + (lr - end) * (1 - (step - warm) / (total - warm + 1))^2.
TEST(RecipeTest, MlperfDecaysAsTheReferenceDoes) {
  const auto lars =
      recipe("lars-mlperf", {.global_batch = 4096, .updates_per_epoch = 10, .epochs = 15});
  const auto& rate = lars.schedule;
  EXPECT_EQ(lars.warmup_updates, 50);
  EXPECT_DOUBLE_EQ(rate(50 + 1), 1e-4 + (10 - 1e-4) * std::pow(100.0 / 101, 2));
  EXPECT_NEAR(rate(149), 1e-4 + (10 - 1e-4) * std::pow(2.0 / 101, 2), 1e-12);
  EXPECT_EQ(rate(151), 1e-4);
}

TEST(RecipeTest, CountsAShortLastBatchAsAnUpdate) {
  const auto lars =
      recipe("lars-mlperf", {.global_batch = 8192, .samples_per_epoch = 1'281'167, .epochs = 64});
  EXPECT_EQ(lars.warmup_updates, 5 * 157);  // 1281167 / 8192 = 156.4
  EXPECT_EQ(lars.total_updates, 64 * 157);
}

TEST(RecipeTest, NvidiaTakesTheNearestRowThatIsNotAbove) {
  struct Row {
    int64_t batch;
    double lr;
    int64_t warmup_epochs;
    int64_t epochs;
    double weight_decay;
    double momentum;
    const char* row;
  };
  for (const auto& row :
       {Row{3264, 10.5, 2, 37, 5e-5, 0.9, "row for batches from 3264"},
        Row{8192, 10.5, 2, 37, 5e-5, 0.9, "row for batches from 3264"},
        Row{13056, 12.8, 9, 48, 2.5e-5, 0.94, "row for batches from 13056"},
        Row{35839, 12.8, 9, 48, 2.5e-5, 0.94, "row for batches from 13056"},
        Row{35840, 21.9, 17, 60, 2.5e-5, 0.94, "row for batches from 35840"},
        Row{64480, 24.699, 31, 90, 1e-4, 0.951807, "row for batches from 64480"}}) {
    const auto lars = recipe("lars-nvidia", {.global_batch = row.batch, .updates_per_epoch = 20});
    EXPECT_EQ(lars.peak_lr, row.lr) << row.batch;
    EXPECT_EQ(lars.warmup_updates, row.warmup_epochs * 20) << row.batch;
    EXPECT_EQ(lars.total_updates, row.epochs * 20) << row.batch;
    EXPECT_EQ(lars.weight_decay, row.weight_decay) << row.batch;
    EXPECT_EQ(lars.momentum, row.momentum) << row.batch;
    EXPECT_NE(lars.source.find(row.row), std::string::npos) << lars.source;
  }
  EXPECT_EQ(recipe("lars-nvidia", {.global_batch = 3264, .updates_per_epoch = 20, .epochs = 10})
                .total_updates,
            200);
}

TEST(RecipeTest, LambPaperHalvesAsItsTableDoes) {
  double lr = 5e-3;
  double fraction = 1.0 / 5;
  int64_t total = 15'625;
  for (int64_t batch = 32768; batch >= 512; batch /= 2) {
    const auto lamb = recipe("lamb-paper", {.global_batch = batch});
    EXPECT_NEAR(lamb.peak_lr, lr, 1e-15) << batch;
    EXPECT_EQ(lamb.total_updates, total) << batch;
    EXPECT_NEAR(static_cast<double>(lamb.warmup_updates), fraction * static_cast<double>(total),
                1e-6)
        << batch;
    EXPECT_EQ(lamb.schedule(0), 0);
    EXPECT_DOUBLE_EQ(lamb.schedule(lamb.warmup_updates), lamb.peak_lr);
    EXPECT_EQ(lamb.schedule(total), 0);
    const int64_t middle = (lamb.warmup_updates + total) / 2;
    EXPECT_NEAR(lamb.schedule(middle), lr / 2, lr / 100) << batch;
    lr /= std::sqrt(2);
    fraction /= 2;
    total *= 2;
  }
  EXPECT_EQ(recipe("lamb-paper").total_updates, 15'625);  // without a batch: the largest
  EXPECT_EQ(recipe("lamb-paper", {.global_batch = 512}).total_updates, 1'000'000);
}

// Their code, with progress p = (update + 1) / total: lr * p / warmup while p < warmup, and
// lr * sqrt(1 - p) from there on, without making up for the warm-up.
TEST(RecipeTest, NvidiaBertPhasesAreAsTheirSchedulerHasThem) {
  struct Phase {
    const char* name;
    int64_t batch;
    double lr;
    double warmup;
    int64_t total;
  };
  for (const auto& phase : {Phase{"lamb-nvidia-phase1", 65536, 6e-3, 0.2843, 7038},
                            Phase{"lamb-nvidia-phase2", 32768, 4e-3, 0.128, 1563}}) {
    const auto lamb = recipe(phase.name, {.global_batch = phase.batch});
    EXPECT_EQ(lamb.peak_lr, phase.lr);
    EXPECT_EQ(lamb.total_updates, phase.total);
    EXPECT_EQ(lamb.weight_decay, 0.01);
    for (int64_t update = 0; update < phase.total; ++update) {
      const double p = static_cast<double>(update + 1) / static_cast<double>(phase.total);
      const double theirs =
          p < phase.warmup ? phase.lr * p / phase.warmup : phase.lr * std::sqrt(1 - p);
      ASSERT_NEAR(lamb.schedule(update), theirs, 1e-12) << phase.name << ' ' << update;
    }
    // The published jump: from the peak down to what the decay has left by then.
    EXPECT_GT(lamb.schedule(lamb.warmup_updates - 1), 0.999 * phase.lr);
    EXPECT_NEAR(lamb.schedule(lamb.warmup_updates), phase.lr * std::sqrt(1 - phase.warmup),
                2e-3 * phase.lr);
    EXPECT_EQ(lamb.schedule(phase.total - 1), 0);
    EXPECT_EQ(lamb.schedule.updates(), phase.total - 1);
  }
}

TEST(RecipeTest, EveryNameWorksAndSaysWhereItIsFrom) {
  for (const auto& name : recipe_names()) {
    const bool lars = name.starts_with("lars");
    const auto made = recipe(
        name, lars ? RecipeOptions{.global_batch = 40'000, .updates_per_epoch = 30, .epochs = 60}
                   : RecipeOptions{});
    EXPECT_FALSE(made.source.empty()) << name;
    EXPECT_LT(made.warmup_updates, made.total_updates) << name;
    EXPECT_GT(made.momentum, 0) << name;
    double highest = 0;
    for (int64_t update = 0; update < made.total_updates; ++update) {
      highest = std::max(highest, made.schedule(update));
    }
    EXPECT_NEAR(highest, made.peak_lr, 1e-3 * made.peak_lr) << name;
  }
}

TEST(RecipeTest, AnUnknownNameIsAnsweredWithTheNearest) {
  EXPECT_EQ(refusal("lars-mlpref", {}),
            "[schedule] there is no recipe 'lars-mlpref' (did you mean 'lars-mlperf'?)\n"
            "  fix: use one of lars-mlperf, lars-nvidia, lamb-paper, lamb-nvidia-phase1, "
            "lamb-nvidia-phase2");
}

TEST(RecipeTest, RefusesAllThatIsNotValidAtOnce) {
  EXPECT_EQ(refusal("lars-mlperf", {}),
            "[schedule] recipe 'lars-mlperf' cannot be made:\n"
            "  - the recipe counts in epochs, and none of updates_per_epoch and samples_per_epoch "
            "is given\n"
            "  - global_batch is 0, below 1\n"
            "  - it does not say how long to train: give epochs");
  EXPECT_EQ(
      refusal(
          "lars-mlperf",
          {.global_batch = 32768, .updates_per_epoch = 40, .samples_per_epoch = 40, .epochs = 25}),
      "[schedule] recipe 'lars-mlperf' cannot be made:\n"
      "  - the recipe counts in epochs, and both of updates_per_epoch and samples_per_epoch "
      "are given\n"
      "  - its warm-up of 25 epochs is not shorter than the 25 in all");
  EXPECT_EQ(refusal("lars-nvidia", {.global_batch = 256, .samples_per_epoch = -5, .epochs = -1}),
            "[schedule] recipe 'lars-nvidia' cannot be made:\n"
            "  - samples_per_epoch is -5, below 1\n"
            "  - global_batch 256 is below the smallest published, 3264\n"
            "  - epochs is -1, below 1");
  EXPECT_EQ(refusal("lamb-paper", {.global_batch = 65536, .epochs = 3}),
            "[schedule] recipe 'lamb-paper' cannot be made:\n"
            "  - epochs is given, and it counts in updates\n"
            "  - global_batch 65536 is outside 512..32768, what was published");
  EXPECT_EQ(refusal("lamb-nvidia-phase2", {.global_batch = 65536, .updates_per_epoch = 7}),
            "[schedule] recipe 'lamb-nvidia-phase2' cannot be made:\n"
            "  - updates_per_epoch is given, and it counts in updates\n"
            "  - global_batch is 65536, and it was published for 32768 only");
}

}  // namespace
}  // namespace fleet::optim
