// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/colour_images.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "fleet/data/images/in_memory_images.h"

#include "tests/support/error_of.h"

namespace fleet {
namespace {

using testing::error_message_of;

std::shared_ptr<const Dataset> grey_images() {
  return std::make_shared<InMemoryImages>(
      torch::arange(4 * 2 * 3).view({4, 2, 3}).to(torch::kUInt8), torch::arange(4),
      PixelStatistics{});
}

TEST(ColourImagesTest, RepeatsChannelsAndPixels) {
  const auto grey = grey_images();
  const std::vector<int64_t> indices = {2, 0};
  const auto expected = grey->get(indices, 0);
  const auto batch = ColourImages(grey, 2).get(indices, 0);
  EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{2, 3, 4, 6}));
  EXPECT_TRUE(batch.target.equal(expected.target));
  const auto scaled = expected.data.repeat_interleave(2, 2).repeat_interleave(2, 3);
  for (int64_t channel = 0; channel < 3; ++channel) {
    EXPECT_TRUE(batch.data.narrow(1, channel, 1).equal(scaled));
  }
  EXPECT_EQ(ColourImages(grey).get({}, 0).size(), 0);
}

TEST(ColourImagesTest, RefusesAScaleBelowOneAndColour) {
  EXPECT_EQ(error_message_of([] { ColourImages(grey_images(), 0); }),
            "[data] images scaled by 0\n  fix: give at least 1");
  const auto colour = std::make_shared<ColourImages>(grey_images());
  EXPECT_EQ(error_message_of([&] { ColourImages(colour).get({}, 0); }),
            "[data] images that are not grey have their colours already\n"
            "  fix: give a data set of N x 1 x H x W");
}

}  // namespace
}  // namespace fleet
