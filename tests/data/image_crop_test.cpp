// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/image_crop.h"

#include <cmath>

#include <gtest/gtest.h>

namespace fleet {
namespace {

TEST(ImageCropTest, DrawsAreasAndRatiosFromTheirRanges) {
  constexpr int64_t kWidth = 500, kHeight = 375;
  double least = 1, most = 0, mean = 0, left = 0;
  constexpr int kDraws = 4000;
  for (int64_t i = 0; i < kDraws; ++i) {
    SplitMix64 random({i});
    const auto crop = random_crop(kWidth, kHeight, 0.08, random);
    ASSERT_TRUE(crop.x >= 0 && crop.y >= 0 && crop.x + crop.width <= kWidth &&
                crop.y + crop.height <= kHeight);
    EXPECT_EQ(crop.x + crop.y + crop.width + crop.height,
              std::round(crop.x + crop.y + crop.width + crop.height));
    const double ratio = crop.width / crop.height;
    EXPECT_GT(ratio, 0.74);
    EXPECT_LT(ratio, 1.35);
    const double share = crop.width * crop.height / (kWidth * kHeight);
    least = std::min(least, share);
    most = std::max(most, share);
    mean += share / kDraws;
    if (crop.width < kWidth) left += crop.x / (kWidth - crop.width) / kDraws;
  }
  EXPECT_NEAR(least, 0.08, 0.005);
  EXPECT_GT(most, 0.97);
  EXPECT_NEAR(mean, 0.435, 0.015);  // as torchvision draws; the largest fit less often
  EXPECT_NEAR(left, 0.5, 0.03);
}

TEST(ImageCropTest, TakesTheMiddleWhenNothingFits) {
  SplitMix64 random({1});
  const auto wide = random_crop(1000, 10, 0.5, random);
  EXPECT_EQ(wide.width, 13);
  EXPECT_EQ(wide.height, 10);
  EXPECT_EQ(wide.x, 493);
  const auto tall = random_crop(30, 4000, 0.5, random);
  EXPECT_EQ(tall.width, 30);
  EXPECT_EQ(tall.height, 40);
  EXPECT_EQ(tall.y, 1980);
  const auto dot = random_crop(1, 1, 0.08, random);
  EXPECT_EQ(dot.width * dot.height, 1);
}

TEST(ImageCropTest, TheMiddleOfTheScaledImage) {
  // 500 x 375 becomes 341 x 256, of which 58 (58.5 to the even) + 224 and 16 + 224 are seen.
  const auto crop = centre_crop(500, 375, 256, 224);
  EXPECT_DOUBLE_EQ(crop.x, 58 * 500.0 / 341);
  EXPECT_DOUBLE_EQ(crop.width, 224 * 500.0 / 341);
  EXPECT_DOUBLE_EQ(crop.y, 16 * 375.0 / 256);
  EXPECT_DOUBLE_EQ(crop.height, 224 * 375.0 / 256);
  EXPECT_FALSE(crop.shows_edge);
}

}  // namespace
}  // namespace fleet
