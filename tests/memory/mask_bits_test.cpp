// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/replay/mask_bits.h"

#include <gtest/gtest.h>

namespace fleet::memory {
namespace {

torch::Tensor random_mask(int64_t n, double value, torch::Dtype type) {
  return ((torch::rand({n}) < 0.9).to(torch::kFloat) * value).to(type);
}

TEST(MaskBits, RestoresTheMaskBitForBitAtAnySizeAndType) {
  torch::manual_seed(1);
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    for (const int64_t n : {1, 7, 8, 9, 63, 64, 65, 1000, 100'003}) {
      const auto mask = random_mask(n, 1 / 0.9, type);
      const auto bits = MaskBits::of(mask);
      ASSERT_TRUE(bits) << n;
      EXPECT_EQ(bits->bytes(), (n + 7) / 8);
      EXPECT_TRUE(torch::equal(bits->mask(), mask)) << n;
      EXPECT_EQ(bits->mask().dtype(), mask.dtype());
    }
  }
}

TEST(MaskBits, TakesMasksOfOneKindOfNumber) {
  for (const auto& mask : {torch::zeros({100}), torch::ones({100}), torch::full({100}, -2.F)}) {
    const auto bits = MaskBits::of(mask);
    ASSERT_TRUE(bits);
    EXPECT_TRUE(torch::equal(bits->mask(), mask));
  }
}

// One number that is another, wherever it stands, and -0, which a bit would turn into 0.
TEST(MaskBits, RejectsAnythingThatIsNotAMask) {
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    for (int64_t n : {20, 50'001}) {
      for (const int64_t at : {int64_t{1}, n / 2, n - 2, n - 1}) {
        for (const float strange : {0.5F, -0.F}) {
          auto mask = torch::ones({n}, type);
          mask[at] = strange;
          EXPECT_FALSE(MaskBits::of(mask)) << at << " of " << n << " is " << strange;
        }
      }
    }
  }
  EXPECT_FALSE(MaskBits::of(torch::ones({4, 4}).t().slice(0, 0, 2)));
  EXPECT_FALSE(MaskBits::of(torch::ones({4}, torch::kDouble)));
}

}  // namespace
}  // namespace fleet::memory
