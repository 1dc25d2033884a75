// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/parallel_text.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

class ParallelTextTest : public ::testing::Test {
 protected:
  ParallelText load(const std::string& source, const std::string& target,
                    int64_t max_length = 10) const {
    return ParallelText(folder_.write("a.src", source), folder_.write("a.tgt", target), tokenizer_,
                        max_length);
  }

  TemporaryFolder folder_;
  const WordPiece tokenizer_{
      Vocabulary({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "eins", "zwei"})};
};

TEST_F(ParallelTextTest, EndsSourcesAndStartsAndEndsTargets) {
  const auto text = load("one two one\none\n",
                         "eins zwei\n\xC3\xBC"
                         "ber eins zwei eins\n");
  const std::vector<int64_t> indices = {0, 1};
  const auto batch = text.get(indices, 0);
  EXPECT_TRUE(batch.data.equal(torch::tensor({{5, 6, 5, 3}, {5, 3, 0, 0}}, torch::kInt64)));
  EXPECT_TRUE(
      batch.target.equal(torch::tensor({{2, 7, 8, 3, 0, 0}, {2, 1, 7, 8, 7, 3}}, torch::kInt64)));
  EXPECT_EQ(text.get({}, 0).size(), 0);
}

TEST_F(ParallelTextTest, LeavesOutPairsThatAreTooLongAndBlankOnes) {
  const auto text = load("one two one\n\none\n", "eins\n\nzwei\n", 3);
  EXPECT_EQ(text.size(), 1);
  EXPECT_EQ(text.too_long(), 1);
}

TEST_F(ParallelTextTest, NamesLinesThatDoNotBelongTogether) {
  EXPECT_TRUE(says(error_message_of([&] { load("one\ntwo\n", "eins\n"); }),
                   "a.src continues after line 1, where ", "a.tgt ends",
                   "fix: give two files whose lines belong together"));
  EXPECT_TRUE(says(error_message_of([&] { load("one\ntwo\n", "eins\n\n"); }),
                   "a.tgt:2 is empty, and its translation is not"));
  EXPECT_TRUE(says(error_message_of([&] { load("one two\n", "eins\n", 2); }),
                   "hold no pair of at most 2 tokens", "fix: allow longer ones"));
}

}  // namespace
}  // namespace fleet
