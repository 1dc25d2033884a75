// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/adaptive_interval.h"

#include <limits>

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

int next(AdaptiveInterval& interval, double loss, double lr) {
  interval.observe({.loss = loss, .updates = 1, .lr = lr});
  return interval.choose();
}

AdaptiveInterval unsmoothed(IntervalFormula formula, int init_k_steps) {
  return AdaptiveInterval(
      {.init_k_steps = init_k_steps, .formula = formula, .loss_smoothing = 0.0});
}

TEST(AdaptiveIntervalTest, AdacommHasTheFirstIntervalOutsideTheRoot) {
  auto interval = unsmoothed(IntervalFormula::kAdacomm, 8);
  EXPECT_EQ(interval.k_steps(), 8);
  EXPECT_EQ(next(interval, 2.0, 0.1), 8);
  EXPECT_EQ(next(interval, 1.0, 0.1), 6);     // 8 sqrt(1/2) = 5.66
  EXPECT_EQ(next(interval, 0.5, 0.1), 4);     // 8 sqrt(1/4)
  EXPECT_EQ(next(interval, 0.5, 0.025), 8);   // 8 sqrt(4 * 1/4)
  EXPECT_EQ(next(interval, 0.02, 0.1), 1);    // 0.8
  EXPECT_EQ(next(interval, 2.0, 0.001), 16);  // 80, more than max_k_steps
}

TEST(AdaptiveIntervalTest, PaddlesCodeHasItInside) {
  auto interval = unsmoothed(IntervalFormula::kPaddle, 16);
  EXPECT_EQ(interval.k_steps(), 16);
  EXPECT_EQ(next(interval, 2.0, 0.1), 4);     // sqrt(16)
  EXPECT_EQ(next(interval, 1.0, 0.1), 3);     // sqrt(8) = 2.83
  EXPECT_EQ(next(interval, 0.5, 0.025), 4);   // sqrt(16 * 4 * 1/4)
  EXPECT_EQ(next(interval, 0.01, 0.1), 1);    // 0.28
  EXPECT_EQ(next(interval, 4.0, 0.001), 16);  // sqrt(16 * 100 * 2) = 56.6
}

TEST(AdaptiveIntervalTest, TheReferenceRateIsThePeakOfAWarmUp) {
  auto interval = unsmoothed(IntervalFormula::kAdacomm, 4);
  for (const double lr : {0.001, 0.01, 0.1}) EXPECT_EQ(next(interval, 1.0, lr), 4) << lr;
  EXPECT_EQ(next(interval, 1.0, 0.05), 6);  // 4 sqrt(2) = 5.66
}

TEST(AdaptiveIntervalTest, SmoothsTheLossByUpdates) {
  AdaptiveInterval interval({.init_k_steps = 10, .loss_smoothing = 0.5});
  interval.observe({.loss = 4, .updates = 1, .lr = 0.1});
  interval.observe({.loss = 2, .updates = 2, .lr = 0.1});
  EXPECT_DOUBLE_EQ(interval.state().loss, 0.25 * 4 + 0.75 * 2);
  EXPECT_DOUBLE_EQ(interval.state().first_loss, 4);
  EXPECT_EQ(interval.choose(), 8);  // 10 sqrt(2.5 / 4) = 7.9
}

TEST(AdaptiveIntervalTest, StaysWhereTheFormulaHasNoMeaning) {
  auto interval = unsmoothed(IntervalFormula::kAdacomm, 8);
  EXPECT_EQ(next(interval, -1.0, 0.1), 8);
  EXPECT_EQ(next(interval, 1.0, 0.1), 8);
  EXPECT_EQ(next(interval, 0.25, 0.1), 4);
  EXPECT_EQ(next(interval, std::numeric_limits<double>::quiet_NaN(), 0.1), 4);
  EXPECT_EQ(next(interval, 0, 0.1), 4);
  EXPECT_EQ(next(interval, 0.25, 0), 16) << "nothing moves without a rate";
}

TEST(AdaptiveIntervalTest, ItsStateIsAllThereIs) {
  auto first = unsmoothed(IntervalFormula::kAdacomm, 8);
  next(first, 2.0, 0.1);
  next(first, 1.5, 0.1);
  auto second = unsmoothed(IntervalFormula::kAdacomm, 8);
  second.set_state(first.state());
  EXPECT_EQ(next(first, 0.7, 0.05), next(second, 0.7, 0.05));
  EXPECT_EQ(first.state(), second.state());
}

TEST(AdaptiveIntervalTest, RefusesAnIntervalOutOfItsLimits) {
  EXPECT_TRUE(
      says(error_message_of([] { AdaptiveInterval({.init_k_steps = 20, .max_k_steps = 16}); }),
           "cannot begin at 20 and stay between 1 and 16"));
  EXPECT_TRUE(
      says(error_message_of([] { AdaptiveInterval({.loss_smoothing = 1.0}); }), "outside [0, 1)"));
}

}  // namespace
}  // namespace fleet
