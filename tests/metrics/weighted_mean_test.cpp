// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/weighted_mean.h"

#include <cmath>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/support/error_of.h"

namespace fleet {
namespace {

using testing::error_message_of;

TEST(WeightedMeanTest, IsTheMeanOfTheWhole) {
  const auto values = torch::arange(10, torch::kFloat32);
  WeightedMean mean;
  mean.add(values.slice(0, 0, 7).mean(), 7);
  mean.add(values.slice(0, 7).mean(), 3);
  EXPECT_DOUBLE_EQ(mean.value(), 4.5);
  EXPECT_EQ(mean.weight(), 10);
}

TEST(WeightedMeanTest, SumsOfRanksGiveTheMeanOverAll) {
  WeightedMean one, other;
  one.add(1.0, 1);
  other.add(4.0, 2);
  one.sums().add_(other.sums());
  EXPECT_DOUBLE_EQ(one.value(), 3);
}

TEST(WeightedMeanTest, EmptyBatchesDoNotCount) {
  WeightedMean mean;
  EXPECT_EQ(mean.value(), 0);
  mean.add(std::nan(""), 0);
  mean.add(2.0, 5);
  EXPECT_EQ(mean.value(), 2);
  mean.reset();
  EXPECT_EQ(mean.weight(), 0);
}

TEST(WeightedMeanTest, RefusesWhatIsNoMean) {
  WeightedMean mean;
  EXPECT_EQ(error_message_of([&] { mean.add(torch::zeros({3}), 1); }),
            "[metrics] a mean of 3 numbers\n  fix: give one number");
  EXPECT_EQ(error_message_of([&] { mean.add(1.0, -2); }),
            "[metrics] a weight of -2\n  fix: give at least 0");
}

}  // namespace
}  // namespace fleet
