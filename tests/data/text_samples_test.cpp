// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/text_samples.h"

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/data/idx_bytes.h"
#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;
using Ids = std::vector<int32_t>;

Ids listed(std::span<const int32_t> span) { return {span.begin(), span.end()}; }

class TextSamplesTest : public ::testing::Test {
 protected:
  TextSamples load(const std::string& text, const std::string& name = "part") {
    return TextSamples::load(folder_.write(name, text), vocabulary_, 10);
  }
  // What is said to `line` behind one that is good.
  std::string refusal(const std::string& line, const std::string& good = "2 5 3;0 0 0;0 1 2;1") {
    const auto path = folder_.write("bad", good + "\n" + line + "\n");
    const auto text = error_message_of([&] { TextSamples::load(path, vocabulary_, 10); });
    EXPECT_TRUE(says(text, path.string() + ":2: "));
    return text;
  }
  std::string masked_refusal(const std::string& line) {
    return refusal(line, "2 4 3;1 1 1;0 0 0;1;5;1.0;0");
  }

  TemporaryFolder folder_;
  Vocabulary vocabulary_{{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"}};
};

TEST_F(TextSamplesTest, ReadsFourFields) {
  const auto samples = load("2 5 6 3 7 3;0 0 0 0 1 1;0 1 2 3 4 5;1\n2 5 3;0 0 0;0 1 2;1\r\n");
  ASSERT_EQ(samples.size(), 2);
  EXPECT_FALSE(samples.is_masked());
  EXPECT_TRUE(samples.follow_always());
  EXPECT_EQ(listed(samples[0].tokens), (Ids{2, 5, 6, 3, 7, 3}));
  EXPECT_EQ(samples[0].first_length, 4);
  EXPECT_TRUE(samples[0].has_second());
  EXPECT_FALSE(samples[1].has_second());
  const auto other = load("2 5 6 3 7 3;0 0 0 0 1 1;0 1 2 3 4 5;0");
  EXPECT_FALSE(other[0].follows);
  EXPECT_FALSE(other.follow_always());
  EXPECT_NE(other.fingerprint(), samples.fingerprint());
}

TEST_F(TextSamplesTest, ReadsSevenFieldsWithoutTheirPadding) {
  const auto samples = load(
      "2 4 6 3 7 3 0 0;1 1 1 1 1 1 0 0;0 0 0 0 1 1 0 0;4 1 0;7 5 0;1.0 1.0 0.0;1\n"
      "2 4 3;1 1 1;0 0 0;1;5;1;0");
  ASSERT_EQ(samples.size(), 2);
  EXPECT_TRUE(samples.is_masked());
  EXPECT_EQ(listed(samples[0].tokens), (Ids{2, 4, 6, 3, 7, 3}));
  EXPECT_EQ(listed(samples[0].masked_positions), (Ids{4, 1}));
  EXPECT_EQ(listed(samples[0].masked_labels), (Ids{7, 5}));
  EXPECT_FALSE(samples[0].follows);  // 1 means a random second sentence here
  EXPECT_TRUE(samples[1].follows);
  EXPECT_EQ(listed(samples[1].masked_labels), (Ids{5}));
}

TEST_F(TextSamplesTest, ReadsAFolderInTheOrderOfNames) {
  const std::string a = "2 5 3;0 0 0;0 1 2;1\n", b = "2 6 3;0 0 0;0 1 2;1\n";
  folder_.write("2.gz", gzip(b));
  folder_.write("1.txt", a + a);
  folder_.write(".hidden", "x");
  const auto samples = TextSamples::load(folder_.path(), vocabulary_, 10);
  ASSERT_EQ(samples.size(), 3);
  EXPECT_EQ(samples[1].tokens[1], 5);
  EXPECT_EQ(samples[2].tokens[1], 6);
}

TEST_F(TextSamplesTest, ReadsTheFilesOfAListInItsOrder) {
  const std::string a = "2 5 3;0 0 0;0 1 2;1\n", b = "2 6 3;0 0 0;0 1 2;1\n";
  folder_.write("1.txt", a);
  folder_.write("2.gz", gzip(b));
  folder_.write("3.txt", a);
  folder_.write("train.txt", "2.gz\n\n1.txt\n");
  const auto samples = TextSamples::load(folder_.path(), vocabulary_, 10, "train.txt");
  ASSERT_EQ(samples.size(), 2);
  EXPECT_EQ(samples[0].tokens[1], 6);
  EXPECT_EQ(samples[1].tokens[1], 5);
}

TEST_F(TextSamplesTest, NamesTheLineOfAListThatNamesNoFile) {
  const auto refusal_of = [&](const char* text) {
    folder_.write("val.txt", text);
    return error_message_of([&] { TextSamples::load(folder_.path(), vocabulary_, 10, "val.txt"); });
  };
  EXPECT_TRUE(says(refusal_of("val.txt\nnothing.gz\n"), "val.txt:2: there is no file ",
                   "nothing.gz", "fix: name files of token lines"));
  EXPECT_TRUE(says(refusal_of("\n"), "val.txt names no file"));
  EXPECT_TRUE(says(
      error_message_of([&] { TextSamples::load(folder_.path(), vocabulary_, 10, "train.txt"); }),
      "cannot read", "train.txt"));
}

TEST_F(TextSamplesTest, TakesSamplesThatNoFileHolds) {
  TextSamples samples;
  const Ids tokens = {2, 5, 6, 3, 7, 3};
  samples.add({.tokens = tokens, .first_length = 4});
  const auto read = load("2 5 6 3 7 3;0 0 0 0 1 1;0 1 2 3 4 5;1\n");
  EXPECT_EQ(samples.fingerprint(), read.fingerprint());
  EXPECT_EQ(listed(samples[0].tokens), tokens);
  EXPECT_TRUE(samples.follow_always());
  samples.add({.tokens = tokens, .first_length = 4, .follows = false});
  EXPECT_FALSE(samples.follow_always());
}

TEST_F(TextSamplesTest, LeavesOutAndCountsWhatIsTooLong) {
  const auto ids = [](int count, const char* first, const char* middle, const char* last) {
    std::string text = first;
    for (int i = 2; i < count; ++i) text += middle;
    return text + last;
  };
  std::string places = "0";
  for (int i = 1; i < 11; ++i) places += format(" {}", i);
  const auto longer = ids(11, "2", " 5", " 3;") + ids(11, "0", " 0", " 0;") + places + ";1\n";
  const auto samples = load(longer + "2 5 3;0 0 0;0 1 2;1\n" + longer);
  EXPECT_EQ(samples.size(), 1);
  EXPECT_EQ(samples.too_long(), 2);
  EXPECT_TRUE(says(error_message_of([&] { load(longer); }), "no sample of at most 10",
                   "raise max_seq_len"));
}

TEST_F(TextSamplesTest, NamesTheLineThatIsMalformed) {
  EXPECT_TRUE(says(refusal(""), "1 fields, where 4 or 7"));
  EXPECT_TRUE(says(refusal("2 5 3;0 0 0;0 1 2"), "3 fields"));
  EXPECT_TRUE(
      says(refusal("2 5 3;1 1 1;0 0 0;1;5;1.0;0"), "7 fields, where the lines before have 4"));
  EXPECT_TRUE(says(refusal("2 x 3;0 0 0;0 1 2;1"), "'x' in token_ids"));
  EXPECT_TRUE(says(refusal("2  5 3;0 0 0;0 1 2;1"), "'' in token_ids"));
  EXPECT_TRUE(says(refusal("2 -5 3;0 0 0;0 1 2;1"), "'-5' in token_ids"));
  EXPECT_TRUE(says(refusal("2 99999999999 3;0 0 0;0 1 2;1"), "'99999999999'"));
  EXPECT_TRUE(says(refusal("2 8 3;0 0 0;0 1 2;1"), "token 8 of a vocabulary of 8"));
  EXPECT_TRUE(says(refusal("2 5 3;0 0;0 1 2;1"), "2 sent_ids for 3 tokens"));
  EXPECT_TRUE(says(refusal("2 5 3;0 0 0;0 1;1"), "2 pos_ids for 3 tokens"));
  EXPECT_TRUE(says(refusal("2 5 3;0 0 0;0 2 1;1"), "pos_ids has 2 where 1 stands"));
  EXPECT_TRUE(says(refusal("2 5 3;0 1 0;0 1 2;1"), "sent_ids is not zeros and then ones"));
  EXPECT_TRUE(says(refusal("2 5 3;0 2 2;0 1 2;1"), "sent_ids is not zeros and then ones"));
  EXPECT_TRUE(says(refusal("2 5 3;0 0 0;0 1 2;2"), "label '2'"));
  EXPECT_TRUE(says(refusal("5 5 3;0 0 0;0 1 2;1"), "begin with 5 and not with [CLS], which is 2"));
  EXPECT_TRUE(says(refusal("2 5 5;0 0 0;0 1 2;1"), "does not end with [SEP], which is 3"));
  EXPECT_TRUE(says(refusal("2 5 6 3;0 0 1 1;0 1 2 3;1"), "does not end with [SEP]"));
  EXPECT_TRUE(says(refusal("2 3;0 0;0 1;1"), "no token that could be masked"));
  EXPECT_TRUE(says(refusal(";;;1"), "no tokens"));
}

TEST_F(TextSamplesTest, NamesTheMaskedLineThatIsMalformed) {
  EXPECT_TRUE(says(masked_refusal("2 4 3;1 0 1;0 0 0;1;5;1.0;0"), "not ones and then zeros"));
  EXPECT_TRUE(says(masked_refusal("2 4 3;1 1;0 0 0;1;5;1.0;0"), "2 input_mask for 3 tokens"));
  EXPECT_TRUE(says(masked_refusal("2 4 3;1 1 1;0 0 0;1 2;5;1.0;0"), "2 masked_pos, 1 masked_ids"));
  EXPECT_TRUE(says(masked_refusal("2 4 3;1 1 1;0 0 0;3;5;1.0;0"), "masked_pos 3 is outside the 3"));
  EXPECT_TRUE(says(masked_refusal("2 4 3;1 1 1;0 0 0;1;9;1.0;0"), "token 9 of"));
  EXPECT_TRUE(says(masked_refusal("2 4 3;1 1 1;0 0 0;1;5;0.5;0"), "masked_weight '0.5'"));
  EXPECT_TRUE(says(masked_refusal("2 4 3;1 1 1;0 0 0;1;5;one;0"), "masked_weight 'one'"));
  EXPECT_TRUE(says(masked_refusal("2 4 3;1 1 1;0 0 0;1 1;5 5;1 1;0"), "a masked_pos occurs twice"));
}

TEST_F(TextSamplesTest, SaysWhatIsNotThere) {
  EXPECT_TRUE(
      says(error_message_of([&] { TextSamples::load(folder_.path() / "no", vocabulary_, 10); }),
           "cannot read", "No such file"));
  EXPECT_TRUE(says(error_message_of([&] { TextSamples::load(folder_.path(), vocabulary_, 10); }),
                   "no files in"));
  EXPECT_TRUE(says(error_message_of([&] { load(""); }), "no sample"));
  EXPECT_TRUE(says(error_message_of([&] { load("not gzip", "a.gz"); }), "corrupt gzip data"));
}

}  // namespace
}  // namespace fleet
