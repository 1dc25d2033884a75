// SPDX-License-Identifier: Apache-2.0
#include "fleet/applications/data/image_data.h"

#include <utility>

#include <gtest/gtest.h>

#include "fleet/applications/resnet.h"

#include "tests/support/error_of.h"

namespace fleet::applications {
namespace {

using testing::error_message_of;

using Sizes = std::pair<int64_t, int64_t>;

TEST(ImageDataTest, SizesThatNobodyGaveAreThoseOfTheData) {
  const auto sizes = [](const char* data) {
    const auto options = ImageDataOptions{.data = data}.resolved();
    return Sizes(options.image_size, options.classes);
  };
  EXPECT_EQ(sizes("synthetic"), Sizes(224, 10));
  EXPECT_EQ(sizes("fashion_mnist"), Sizes(28, 10));
  EXPECT_EQ(sizes("ImageNet"), Sizes(224, 1000));
  const auto given = ImageDataOptions{.image_size = 32, .classes = 7}.resolved();
  EXPECT_EQ(given.image_size, 32);
  EXPECT_EQ(given.classes, 7);
}

TEST(ImageDataTest, TestsWithImagesThatTrainingDoesNotSee) {
  const ImageDataOptions options{.image_size = 8, .classes = 10, .samples = 20};
  auto data = load_image_data(options, {.batch_size = 20});
  EXPECT_EQ(data.train.dataset().size(), 20);
  EXPECT_EQ(data.test.dataset().size(), 4);
  torch::Tensor seen;
  for (const auto& batch : data.train.epoch(0)) seen = batch.data;
  for (const auto& batch : data.test.epoch(0)) {
    for (int64_t i = 0; i < batch.size(); ++i) {
      EXPECT_FALSE(seen.eq(batch.data[i]).flatten(1).all(1).any().item<bool>());
    }
  }
}

TEST(ImageDataTest, NamesTheSizesThatFashionMnistCanHave) {
  EXPECT_EQ(error_message_of([] {
              load_image_data({.data = "fashion_mnist", .image_size = 32, .classes = 10}, {});
            }),
            "[data] Fashion-MNIST's images have 28 x 28 pixels and are scaled by whole numbers, "
            "not to 32\n  fix: use --image_size 28 or 56");
}

TEST(ApplicationTest, BringsItsCheckpointsWhereNoneAreNamed) {
  const Resnet model(ResnetOptions{.blocks = {1, 1, 1, 1}, .classes = 10, .width = 8});
  const DistributedStrategy plain, bare{.recompute = true},
      named{.recompute = true, .recompute_configs = {.checkpoints = {"layer1.0"}}},
      budget{.recompute = true, .recompute_configs = {.memory_budget = "1GiB"}};
  EXPECT_EQ(model.with_checkpoints(bare).recompute_configs.checkpoints, model.checkpoints());
  for (const auto& strategy : {plain, named, budget}) {
    EXPECT_EQ(model.with_checkpoints(strategy), strategy);
  }
}

}  // namespace
}  // namespace fleet::applications
