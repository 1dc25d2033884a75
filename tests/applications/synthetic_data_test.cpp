// SPDX-License-Identifier: Apache-2.0
// The synthetic tasks as data sets: every sample is always the same, and those of a batch are those
// that synthetic_batch draws.
#include "fleet/applications/data/synthetic_data.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "fleet/applications/data/synthetic.h"

#include "tests/support/error_of.h"

namespace fleet::applications {
namespace {

using testing::error_message_of;

TEST(SyntheticDataTest, ImagesAreThoseOfTheBatches) {
  const auto images = synthetic_images(10, 16, {.first = 5, .count = 20});
  EXPECT_EQ(images->size(), 20);
  const std::vector<int64_t> indices = {3, 0};
  const auto batch = images->get(indices, 0);
  EXPECT_TRUE(batch.data.equal(images->get(indices, 1).data)) << "in every epoch";
  for (int64_t i = 0; i < 2; ++i) {
    const auto one =
        synthetic_batch(ResnetOptions{.classes = 10}, 1, 5 + indices[static_cast<size_t>(i)], 16);
    EXPECT_TRUE(batch.data[i].equal(one.data[0]));
    EXPECT_TRUE(batch.target[i].equal(one.target[0]));
  }
  EXPECT_EQ(images->get({}, 0).data.sizes(), (std::vector<int64_t>{0, 3, 16, 16}));
}

TEST(SyntheticDataTest, TranslationsMakePaddedBatches) {
  const auto pairs = synthetic_translation(20, 9, {.count = 30});
  const std::vector<int64_t> indices = {0, 1, 2, 7};
  const auto rows = pairs->get(indices, 0);
  const auto batch = TransformerBatch::padded(rows.data, rows.target);
  for (int64_t i = 0; i < 4; ++i) {
    const auto one = synthetic_batch(TransformerOptions{.source_vocab = 20, .target_vocab = 20}, 1,
                                     indices[static_cast<size_t>(i)], 9);
    EXPECT_TRUE(batch.source[i].equal(one.source[0]));
    EXPECT_TRUE(batch.target[i].equal(one.target[0]));
    EXPECT_TRUE(batch.source_mask[i].equal(one.source_mask[0].ne(0)));
    EXPECT_TRUE(batch.target_mask[i].equal(one.target_mask[0].ne(0)));
  }
}

TEST(SyntheticDataTest, TextHasTheWordsBeforeTheyWereMasked) {
  constexpr int64_t kFirstWord = 4, kCircle = 8;
  auto text = synthetic_text(100, {.count = 50}, {.max_seq_len = 24, .batch_size = 10, .seed = 3});
  EXPECT_EQ(text.size(), 50);
  EXPECT_EQ(text.vocabulary().size(), 100);
  int64_t follow = 0;
  for (const auto& batch : text) {
    auto words = batch.token_ids.flatten().clone();
    words.index_copy_(0, batch.masked_positions, batch.masked_labels);
    words = words.view(batch.token_ids.sizes());
    follow += batch.next_sentence_labels.eq(0).sum().item<int64_t>();
    for (int64_t i = 0; i < batch.size(); ++i) {
      for (int64_t p = 0; p < words.size(1); ++p) {
        const auto word = words[i][p].item<int64_t>();
        if (word < kFirstWord) continue;
        EXPECT_EQ((word - kFirstWord) % kCircle, p % kCircle);
      }
    }
  }
  EXPECT_GT(follow, 10);
  EXPECT_LT(follow, 40);
}

TEST(SyntheticDataTest, NeedsASample) {
  EXPECT_EQ(error_message_of([] { synthetic_images(10, 16, {}); }),
            "[synthetic] 0 samples\n  fix: ask for one at least");
}

}  // namespace
}  // namespace fleet::applications
