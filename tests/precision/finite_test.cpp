// SPDX-License-Identifier: Apache-2.0
#include "fleet/precision/finite.h"

#include <cmath>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

namespace fleet::precision {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(FiniteTest, NamesTheFirstThatIsNot) {
  const auto bad = torch::tensor({1.f, NAN});
  EXPECT_EQ(first_non_finite({{"a", torch::ones({3})},
                              {"none", torch::Tensor()},
                              {"whole", torch::ones({3}, torch::kLong)},
                              {"empty", torch::empty({0})}}),
            std::nullopt);
  EXPECT_EQ(first_non_finite({{"a", torch::ones({3})}, {"b", bad}, {"c", bad}}), "b");
  EXPECT_FALSE(all_finite(torch::tensor({kInf, -kInf, 1.f})));
  EXPECT_FALSE(all_finite(torch::tensor({1.f, kInf}).to(torch::kHalf)));
}

TEST(FiniteTest, ASumThatOverflowsIsNotEnough) {
  EXPECT_TRUE(all_finite(torch::full({4}, 3e38f)));
  EXPECT_TRUE(all_finite(torch::full({4}, 60000.f, torch::kHalf)));
}

}  // namespace
}  // namespace fleet::precision
