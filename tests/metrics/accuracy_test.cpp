// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/accuracy.h"

#include <cmath>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

namespace fleet {
namespace {

TEST(AccuracyTest, AgreesWithAPlainCount) {
  torch::manual_seed(1);
  const auto scores = torch::randn({200, 10});
  const auto target = torch::randint(10, {200}, torch::kInt64);
  Accuracy accuracy(5);
  accuracy.add(scores.slice(0, 0, 64), target.slice(0, 0, 64));
  accuracy.add(scores.slice(0, 64), target.slice(0, 64));

  const auto order = scores.argsort(1, /*descending=*/true);
  for (int64_t k = 1; k <= 5; ++k) {
    int64_t right = 0;
    for (int64_t sample = 0; sample < 200; ++sample) {
      for (int64_t place = 0; place < k; ++place) {
        right += order[sample][place].item<int64_t>() == target[sample].item<int64_t>();
      }
    }
    EXPECT_EQ(accuracy.counts()[k - 1].item<int64_t>(), right);
    EXPECT_DOUBLE_EQ(accuracy.top(k), right / 200.0);
  }
  EXPECT_EQ(accuracy.samples(), 200);
}

TEST(AccuracyTest, SumsOverRanksByAddingCounts) {
  const auto scores = torch::eye(4);
  Accuracy all(2), left(2), right(2);
  const auto target = torch::tensor({0, 1, 3, 3}, torch::kInt64);
  all.add(scores, target);
  left.add(scores.slice(0, 0, 1), target.slice(0, 0, 1));
  right.add(scores.slice(0, 1), target.slice(0, 1));
  left.counts() += right.counts();  // what an all-reduce does
  EXPECT_TRUE(torch::equal(left.counts(), all.counts()));
  EXPECT_DOUBLE_EQ(left.top(1), 0.75);
}

TEST(AccuracyTest, DoesNotRewardTiesOrNan) {
  Accuracy accuracy(2);
  accuracy.add(torch::zeros({3, 4}), torch::tensor({0, 1, 2}, torch::kInt64));
  accuracy.add(torch::full({1, 4}, std::nan("")), torch::tensor({0}, torch::kInt64));
  EXPECT_EQ(accuracy.top(1), 0);
  EXPECT_EQ(accuracy.top(2), 0);
}

TEST(AccuracyTest, TakesEmptyBatches) {
  Accuracy accuracy;
  accuracy.add(torch::zeros({0, 10}), torch::zeros({0}, torch::kInt64));
  EXPECT_EQ(accuracy.samples(), 0);
  EXPECT_EQ(accuracy.top(1), 0);
}

TEST(AccuracyTest, RefusesWhatItDidNotCount) {
  EXPECT_THROW(Accuracy(0), Error);
  EXPECT_THROW(Accuracy(1).top(5), Error);
  EXPECT_THROW(Accuracy(1).add(torch::zeros({3, 2}), torch::zeros({2}, torch::kInt64)), Error);
}

}  // namespace
}  // namespace fleet
