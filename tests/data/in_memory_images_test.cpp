// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/in_memory_images.h"

#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

constexpr int64_t kCount = 40;
constexpr int64_t kSide = 6;

torch::Tensor pixels() {
  return torch::arange(1, kCount * kSide * kSide + 1)
      .remainder(251)
      .add(1)
      .to(torch::kUInt8)
      .view({kCount, kSide, kSide});
}

InMemoryImages images(Augmentation augmentation = {}) {
  return {pixels(), torch::arange(kCount), {.mean = 0.25, .std = 0.5}, augmentation};
}

std::vector<int64_t> all_indices() {
  std::vector<int64_t> indices(kCount);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST(InMemoryImagesTest, NormalisesWhatIsAskedFor) {
  const std::vector<int64_t> indices = {7, 0, 7};
  const auto batch = images().get(indices, 0);
  const auto expected =
      ((pixels().to(torch::kFloat64) / 255 - 0.25) / 0.5).to(torch::kFloat32).unsqueeze(1);
  EXPECT_TRUE(torch::allclose(batch.data, expected.index_select(0, torch::tensor(indices))));
  EXPECT_TRUE(torch::equal(batch.target, torch::tensor(indices)));
}

TEST(InMemoryImagesTest, GivesAnEmptyBatchWithItsShape) {
  const auto batch = images().get({}, 0);
  EXPECT_EQ(batch.size(), 0);
  EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{0, 1, kSide, kSide}));
  EXPECT_EQ(batch.target.sizes(), std::vector<int64_t>{0});
}

TEST(InMemoryImagesTest, AugmentsByFlipsAndShiftsOnly) {
  const auto plain = images().get(all_indices(), 0).data;
  const float black = (0.0f - 0.25f) / 0.5f;
  const auto changed = images({.flip = true, .max_shift = 2, .seed = 5}).get(all_indices(), 3).data;
  // Every image must be one of the fifty that a flip and shifts of up to 2 can make.
  std::set<int> seen;
  const auto padded = torch::constant_pad_nd(plain, {2, 2, 2, 2}, black);
  for (int64_t i = 0; i < kCount; ++i) {
    int found = -1;
    for (int choice = 0; choice < 50; ++choice) {
      auto source = choice < 25 ? padded[i] : padded[i].flip(-1);
      const auto cut = source.narrow(-2, choice % 25 / 5, kSide).narrow(-1, choice % 5, kSide);
      if (torch::equal(cut, changed[i])) found = choice;
    }
    EXPECT_GE(found, 0) << "image " << i;
    seen.insert(found);
  }
  EXPECT_GT(seen.size(), 15u);  // 40 draws from 50
}

TEST(InMemoryImagesTest, AugmentsTheSameWhateverTheBatch) {
  const auto set = images({.flip = true, .max_shift = 2, .seed = 5});
  const auto whole = set.get(all_indices(), 3);
  const std::vector<int64_t> some = {31, 4};
  EXPECT_TRUE(torch::equal(set.get(some, 3).data, whole.data.index_select(0, torch::tensor(some))));
  EXPECT_FALSE(torch::equal(set.get(all_indices(), 4).data, whole.data));
  EXPECT_FALSE(torch::equal(
      images({.flip = true, .max_shift = 2, .seed = 6}).get(all_indices(), 3).data, whole.data));
}

TEST(InMemoryImagesTest, ReportsAllProblemsAtOnce) {
  const auto text = error_message_of([] {
    InMemoryImages(torch::zeros({3, 2, 2}), torch::zeros({3}), {.std = 0}, {.max_shift = -1});
  });
  EXPECT_TRUE(says(text, "of type Float, not N x H x W unsigned bytes", "not N int64", "std is 0",
                   "max_shift is -1"));
}

TEST(BatchTest, SlicesAreViews) {
  auto batch = images().get(all_indices(), 0);
  auto part = batch.slice(10, 15);
  EXPECT_EQ(part.size(), 5);
  part.data.fill_(3);
  EXPECT_EQ(batch.data[12].min().item<float>(), 3);
  EXPECT_EQ(part.target[0].item<int64_t>(), 10);
  EXPECT_EQ(batch.slice(4, 4).size(), 0);
  EXPECT_EQ(Batch{}.size(), 0);
}

}  // namespace
}  // namespace fleet
