// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/masked_text.h"

#include <map>
#include <set>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/formats/token_file.h"
#include "fleet/data/split_mix.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;
using Ids = std::vector<int64_t>;

constexpr int64_t kFirstWord = 5;

// A sample as it stands in a batch, with what was there before it was masked.
struct Seen {
  Ids shown, first, second;  // `first` begins with [CLS]
  std::map<int64_t, int64_t> masked;
  int64_t label = -1;

  bool operator==(const Seen&) const = default;
};

std::vector<Seen> rows_of(const BertBatch& batch) {
  std::vector<Seen> rows(static_cast<size_t>(batch.size()));
  const int64_t width = batch.token_ids.size(1);
  for (int64_t m = 0; m < batch.masked_positions.size(0); ++m) {
    const auto position = batch.masked_positions[m].item<int64_t>();
    rows[static_cast<size_t>(position / width)].masked[position % width] =
        batch.masked_labels[m].item<int64_t>();
  }
  for (int64_t i = 0; i < batch.size(); ++i) {
    auto& row = rows[static_cast<size_t>(i)];
    row.label = batch.next_sentence_labels[i].item<int64_t>();
    const auto* tokens = batch.token_ids.data_ptr<int64_t>() + i * width;
    const auto* types = batch.token_type_ids.data_ptr<int64_t>() + i * width;
    const auto* attended = batch.attention_mask.data_ptr<int64_t>() + i * width;
    for (int64_t p = 0; p < width; ++p) {
      EXPECT_EQ(attended[p] == 0, tokens[p] == 0);
      if (attended[p] == 0) continue;
      row.shown.push_back(tokens[p]);
      const auto masked = row.masked.find(p);
      (types[p] == 0 ? row.first : row.second)
          .push_back(masked == row.masked.end() ? tokens[p] : masked->second);
    }
  }
  return rows;
}

// Sample i has the words 5 + i, twice or more, in its first sentence and 305 + i in its second.
class MaskedTextTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSamples = 101;

  void SetUp() override {
    std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    for (int i = 0; i < 500; ++i) tokens.push_back(format("w{}", i));
    vocabulary_ = std::make_unique<Vocabulary>(tokens);
    vocabulary_->save(folder_.path() / "vocab.txt");
    SplitMix64 random({3});
    TokenFile file(folder_.path() / "part.gz", *vocabulary_);
    for (int64_t i = 0; i < kSamples; ++i) {
      const Ids first(2 + random.below(20), kFirstWord + i);
      const Ids second(2 + random.below(20), 300 + kFirstWord + i);
      file.write(first, second);
    }
    file.finish();
  }

  MaskedTextOptions options() {
    return {.data_dir = folder_.path() / "part.gz",
            .vocab_path = folder_.path() / "vocab.txt",
            .max_seq_len = 45,
            .batch_size = 4,
            .seed = 7};
  }

  TemporaryFolder folder_;
  std::unique_ptr<Vocabulary> vocabulary_;
};

TEST_F(MaskedTextTest, YieldsEverySampleOnceOnAnyNumberOfRanks) {
  std::map<int64_t, Seen> alone;  // by number, from one rank
  for (const bool in_tokens : {false, true}) {
    for (const bool shuffle : {true, false}) {
      for (const int64_t world : {1, 2, 3}) {
        std::map<int64_t, Seen> all;
        std::set<int64_t> updates;
        for (int64_t rank = 0; rank < world; ++rank) {
          auto o = options();
          o.in_tokens = in_tokens;
          o.batch_size = in_tokens ? 100 : 4;
          o.shuffle = shuffle;
          o.rank = rank;
          o.world_size = world;
          auto data = load_digital_dataset_from_file(o);
          int64_t count = 0;
          for (const auto& batch : data) {
            ++count;
            EXPECT_LE(in_tokens ? batch.token_ids.numel() : batch.size(), o.batch_size);
            for (auto& row : rows_of(batch)) {
              const auto number = row.first.at(1) - kFirstWord;
              EXPECT_TRUE(all.emplace(number, row).second) << "twice: " << number;
            }
          }
          updates.insert(count);
          EXPECT_EQ(data.epoch(), 1);
          EXPECT_EQ(count, data.updates_in(0));
        }
        EXPECT_EQ(std::ssize(all), kSamples);
        EXPECT_EQ(updates.size(), 1U);  // all ranks make as many
        if (alone.empty()) alone = all;
        EXPECT_TRUE(all == alone);  // pairs and masks too
      }
    }
  }
}

TEST_F(MaskedTextTest, GivesRanksTheBatchesOfOneLargeOne) {
  auto large = options();
  large.batch_size = 12;
  auto data = load_digital_dataset_from_file(large);
  std::vector<MaskedText> ranks;
  for (int64_t rank = 0; rank < 3; ++rank) {
    auto o = options();
    o.rank = rank;
    o.world_size = 3;
    ranks.push_back(load_digital_dataset_from_file(o));
  }
  for (const auto& batch : data) {
    std::vector<Seen> parts;
    for (auto& rank : ranks) {
      for (auto& row : rows_of(rank.next())) parts.push_back(std::move(row));
    }
    EXPECT_TRUE(parts == rows_of(batch));
  }
}

TEST_F(MaskedTextTest, PairsHalfOfTheSentencesWithOthers) {
  auto data = load_digital_dataset_from_file(options());
  int64_t follow = 0, count = 0;
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    for (const auto& batch : data) {
      for (const auto& row : rows_of(batch)) {
        EXPECT_EQ(row.label == 0, row.second.at(0) == row.first.at(1) + 300);
        EXPECT_EQ(row.first.back(), vocabulary_->separator());
        EXPECT_EQ(row.second.back(), vocabulary_->separator());
        EXPECT_LE(std::ssize(row.shown), 45);
        follow += row.label == 0 ? 1 : 0;
        ++count;
      }
    }
  }
  EXPECT_NEAR(static_cast<double>(follow) / static_cast<double>(count), 0.5, 0.05);
}

TEST_F(MaskedTextTest, MasksAsThePaperDoes) {
  auto data = load_digital_dataset_from_file(options());
  double words = 0, masked = 0, hidden = 0, kept = 0, other = 0;
  std::set<std::map<int64_t, int64_t>> of_sample_9;
  constexpr int64_t kEpochs = 20;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (const auto& batch : data) {
      for (const auto& row : rows_of(batch)) {
        EXPECT_GE(row.masked.size(), 1U);
        words += static_cast<double>(row.shown.size()) - 3;
        masked += static_cast<double>(row.masked.size());
        for (const auto& [place, label] : row.masked) {
          EXPECT_GE(label, kFirstWord);  // never a special token
          const auto shown = row.shown.at(static_cast<size_t>(place));
          hidden += shown == vocabulary_->mask() ? 1 : 0;
          kept += shown == label ? 1 : 0;
          other += shown != label && shown != vocabulary_->mask() ? 1 : 0;
          EXPECT_TRUE(shown == vocabulary_->mask() || shown >= kFirstWord);
        }
        if (row.first.at(1) == kFirstWord + 9) of_sample_9.insert(row.masked);
      }
    }
  }
  EXPECT_NEAR(masked / words, 0.15, 0.01);
  EXPECT_NEAR(hidden / masked, 0.8, 0.02);
  EXPECT_NEAR(kept / masked, 0.1, 0.02);
  EXPECT_NEAR(other / masked, 0.1, 0.02);
  EXPECT_GT(of_sample_9.size(), 15U);  // anew in every epoch
}

TEST_F(MaskedTextTest, PutsLikeLengthsTogether) {
  const auto padding = [&](bool shuffle) {
    auto o = options();
    o.shuffle = shuffle;
    auto data = load_digital_dataset_from_file(o);
    double all = 0, padded = 0;
    for (const auto& batch : data) {
      all += static_cast<double>(batch.token_ids.numel());
      padded += batch.attention_mask.eq(0).sum().item<double>();
    }
    return padded / all;
  };
  EXPECT_LT(padding(true), 0.05);
  EXPECT_GT(padding(false), 0.2);
}

TEST_F(MaskedTextTest, ResumesWithTheNextSample) {
  for (const bool in_tokens : {false, true}) {
    auto o = options();
    o.in_tokens = in_tokens;
    o.batch_size = in_tokens ? 90 : 6;
    auto data = load_digital_dataset_from_file(o);
    data.next();
    while (data.epoch() == 0) data.next();
    for (int i = 0; i < 3; ++i) data.next();
    const auto saved = data.state();
    EXPECT_EQ(saved.epoch, 1);
    EXPECT_EQ(saved.next_update, 3);

    o.rank = 1;
    o.world_size = in_tokens ? 1 : 2;  // other ranks are fine while the global batch is the same
    o.batch_size /= *o.world_size;
    if (in_tokens) o.rank = 0;
    auto again = load_digital_dataset_from_file(o);
    again.restore(saved);
    for (int i = 0; i < 20; ++i) {
      auto expected = rows_of(data.next());
      auto rows = rows_of(again.next());
      if (!in_tokens) expected.erase(expected.begin(), expected.begin() + std::ssize(expected) / 2);
      ASSERT_TRUE(rows == expected) << i;
    }
    EXPECT_EQ(again.state().epoch, data.state().epoch);
  }
}

TEST_F(MaskedTextTest, LoopsOverTheRestOfAnEpoch) {
  auto data = load_digital_dataset_from_file(options());
  int64_t count = 0;
  for (const auto& batch : data) {
    EXPECT_GT(batch.size(), 0);
    if (++count == 5) break;
  }
  EXPECT_EQ(data.state().next_update, 5);
  for (const auto& batch : data) count += batch.size() > 0 ? 1 : 0;
  EXPECT_EQ(count, data.updates_in(0));
  EXPECT_EQ(data.epoch(), 1);
}

TEST_F(MaskedTextTest, PrefetchedBatchesAreTheSame) {
  auto o = options();
  o.prefetch = 0;
  auto here = load_digital_dataset_from_file(o);
  o.prefetch = 3;
  auto ahead = load_digital_dataset_from_file(o);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : ahead) {
      ASSERT_TRUE(rows_of(batch) == rows_of(here.next()));
      ASSERT_EQ(ahead.state(), here.state()) << "what waits does not count";
    }
  }
}

TEST_F(MaskedTextTest, CountsTokensThatMayBeMasked) {
  auto data = load_digital_dataset_from_file(options());
  const auto counts = data.token_counts();
  EXPECT_EQ(counts.size(0), vocabulary_->size());
  std::map<int64_t, int64_t> expected;
  for (const auto& batch : data) {
    for (const auto& row : rows_of(batch)) {
      for (const int64_t id : row.first) ++expected[id];
    }
  }
  for (int64_t id = 0; id < 5; ++id) EXPECT_EQ(counts[id].item<int64_t>(), 0);
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t id = kFirstWord + i;
    EXPECT_EQ(counts[id].item<int64_t>(), expected[id]);
  }

  // Of masked files, the words that were there before.
  auto o = options();
  o.data_dir = folder_.write("masked", "2 4 6 3;1 1 1 1;0 0 0 0;1;7;1;0\n");
  const auto masked = load_digital_dataset_from_file(o).token_counts();
  EXPECT_EQ(masked[4].item<int64_t>(), 0);
  EXPECT_EQ(masked[6].item<int64_t>(), 1);
  EXPECT_EQ(masked[7].item<int64_t>(), 1);
}

TEST_F(MaskedTextTest, RefusesAPositionOfOtherData) {
  auto data = load_digital_dataset_from_file(options());
  auto state = data.state();
  state.seed = 8;
  state.global_batch = 5;
  state.fingerprint ^= 1;
  EXPECT_TRUE(says(error_message_of([&] { data.restore(state); }), "seed was 8 and is now 7",
                   "global batch (batch_size x ranks) was 5 and is now 4", "samples are others",
                   "fix: use --batch_size 5: 5 x 1 rank keep the global batch of 5"));
  state = data.state();
  state.next_update = data.updates_in(0);
  EXPECT_TRUE(says(error_message_of([&] { data.restore(state); }), "no update 26 in epoch 0"));
}

TEST_F(MaskedTextTest, SaysWhichBatchSizeKeepsTheGlobalBatchOnOtherRanks) {
  auto o = options();
  o.batch_size = 6;
  const auto saved = load_digital_dataset_from_file(o).state();
  o.batch_size = 4;
  o.rank = 0;
  o.world_size = 2;
  auto two = load_digital_dataset_from_file(o);
  EXPECT_TRUE(says(error_message_of([&] { two.restore(saved); }), "was 6 and is now 8",
                   "fix: use --batch_size 3: 3 x 2 ranks keep the global batch of 6"));
  o.world_size = 4;
  auto four = load_digital_dataset_from_file(o);
  EXPECT_TRUE(says(error_message_of([&] { four.restore(saved); }),
                   "fix: 4 ranks cannot split the global batch of 6: start 3 ranks with "
                   "--batch_size 2, or 6 ranks with --batch_size 1"));
  // Batches of tokens are made for a number of ranks.
  o.in_tokens = true;
  o.batch_size = 64;
  auto in_tokens = load_digital_dataset_from_file(o);
  auto tokens = in_tokens.state();
  tokens.world_size = 2;
  tokens.global_batch = 256;
  EXPECT_TRUE(says(error_message_of([&] { in_tokens.restore(tokens); }),
                   "fix: start 2 ranks with --batch_size 128"));
}

TEST_F(MaskedTextTest, LeavesPairsAndMasksOfTheFilesAlone) {
  auto o = options();
  o.data_dir = folder_.write("masked",
                             "2 4 6 3 7 3 0;1 1 1 1 1 1 0;0 0 0 0 1 1 0;1 0;5 0;1 0;1\n"
                             "2 9 3 8 3;1 1 1 1 1;0 0 0 1 1;1;7;1;0\n");
  o.shuffle = false;
  auto data = load_digital_dataset_from_file(o);
  const auto rows = rows_of(data.next());
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].shown, (Ids{2, 4, 6, 3, 7, 3}));
  EXPECT_EQ(rows[0].masked, (std::map<int64_t, int64_t>{{1, 5}}));
  EXPECT_EQ(rows[0].label, 1);
  EXPECT_EQ(rows[1].masked, (std::map<int64_t, int64_t>{{1, 7}}));
  EXPECT_EQ(rows[1].label, 0);

  // One pair that does not follow: then the labels are the files' business.
  o.data_dir = folder_.write("labelled",
                             "2 9 3 8 3;0 0 0 1 1;0 1 2 3 4;0\n"
                             "2 10 3 11 3;0 0 0 1 1;0 1 2 3 4;1\n");
  auto labelled = load_digital_dataset_from_file(o);
  for (int epoch = 0; epoch < 10; ++epoch) {
    const auto pair = rows_of(labelled.next());
    EXPECT_EQ(pair[0].label, 1);
    EXPECT_EQ(pair[0].second, (Ids{8, 3}));
    EXPECT_EQ(pair[1].label, 0);
    EXPECT_EQ(pair[1].second, (Ids{11, 3}));
  }
}

TEST_F(MaskedTextTest, HasNoPairLabelsForSingleSentences) {
  auto o = options();
  o.data_dir = folder_.write("single", "2 9 3;0 0 0;0 1 2;1\n2 9 10 3;0 0 0 0;0 1 2 3;1\n");
  EXPECT_FALSE(load_digital_dataset_from_file(o).next().next_sentence_labels.defined());
}

TEST_F(MaskedTextTest, CutsTheLongerSentenceOfAPairThatIsTooLong) {
  auto o = options();
  o.data_dir = folder_.write("long",
                             "2 9 9 9 9 9 3 8 3;0 0 0 0 0 0 0 1 1;0 1 2 3 4 5 6 7 8;1\n"
                             "2 10 3 7 7 7 7 7 3;0 0 0 1 1 1 1 1 1;0 1 2 3 4 5 6 7 8;1\n");
  o.max_seq_len = 9;
  auto data = load_digital_dataset_from_file(o);
  bool seen = false;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (const auto& row : rows_of(data.next())) {
      EXPECT_LE(row.shown.size(), 9U);
      if (row.label == 0 || row.first.at(1) != 9) continue;
      EXPECT_EQ(row.first, (Ids{2, 9, 9, 9, 3}));
      EXPECT_EQ(row.second, (Ids{7, 7, 7, 3}));
      seen = true;
    }
  }
  EXPECT_TRUE(seen);
}

TEST_F(MaskedTextTest, RefusesOptionsThatDoNotFit) {
  auto o = options();
  o.in_tokens = true;
  o.batch_size = 40;
  o.rank = 3;
  o.world_size = 3;
  o.masked_ratio = 0;
  o.prefetch = -1;
  EXPECT_TRUE(says(error_message_of([&] { load_digital_dataset_from_file(o); }),
                   "a batch of 40 tokens has no room for a sample of max_seq_len 45",
                   "rank 3 is outside 0..2", "masked_ratio is 0", "prefetch is -1, below 0"));
  o = options();
  o.rank = 0;
  o.world_size = 200;
  EXPECT_TRUE(says(error_message_of([&] { load_digital_dataset_from_file(o); }),
                   "200 ranks are more than the 101 samples"));
}

}  // namespace
}  // namespace fleet
