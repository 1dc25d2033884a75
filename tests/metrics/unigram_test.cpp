// SPDX-License-Identifier: Apache-2.0
#include "fleet/metrics/unigram.h"

#include <cmath>

#include <gtest/gtest.h>

namespace fleet {
namespace {

TEST(UnigramTest, ScoresByCountsWithOneAddedToEach) {
  const Unigram unigram(torch::tensor({5, 0, 2}, torch::kInt64));  // 6, 1 and 3 of 10
  EXPECT_DOUBLE_EQ(unigram.loss(torch::tensor({0}, torch::kInt64)).item<double>(), -std::log(0.6));
  EXPECT_DOUBLE_EQ(unigram.loss(torch::tensor({0, 1, 2, 2}, torch::kInt64)).item<double>(),
                   -(std::log(0.6) + std::log(0.1) + 2 * std::log(0.3)) / 4);
}

TEST(UnigramTest, OnItsOwnTextItIsTheEntropy) {
  const auto text = torch::randint(4, {40000}, torch::kInt64);
  const Unigram unigram(text.bincount());
  EXPECT_NEAR(unigram.loss(text).item<double>(), std::log(4), 1e-3);
}

}  // namespace
}  // namespace fleet
