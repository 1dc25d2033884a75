// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/data/text/masked_text.h"
#include "fleet/data/text/sentence_pairs.h"
#include "fleet/data/text/word_piece.h"

#include "tests/data/temporary_folder.h"
#include "tests/fleet_tool/output_of.h"
#include "tests/support/error_of.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet::tool {
namespace {

using fleet::testing::error_message_of;

class TokenizeTest : public ::testing::Test {
 protected:
  std::string path(const char* name) { return (folder_.path() / name).string(); }

  TemporaryFolder folder_;
};

std::vector<std::string> sentences_of(const std::vector<std::string>& lines) {
  std::vector<std::string> sentences;
  SentenceSplitter splitter([&](std::string_view sentence) { sentences.emplace_back(sentence); });
  for (const auto& line : lines) splitter.add_line(line);
  splitter.finish();
  return sentences;
}

TEST_F(TokenizeTest, CutsProseIntoSentences) {
  EXPECT_EQ(sentences_of({"One is here. Two", "goes on!? \"Three.\" 3.5 is", "four", "", "Five"}),
            (std::vector<std::string>{"One is here.", "Two goes on!?", "\"Three.\"", "3.5 is four ",
                                      "Five "}));
  EXPECT_EQ(sentences_of({"一。二！三"}), (std::vector<std::string>{"一。", "二！", "三 "}));
  EXPECT_EQ(sentences_of({"(A.) b", "  "}), (std::vector<std::string>{"(A.)", "b "}));
}

TEST_F(TokenizeTest, FillsSamplesWithoutLoss) {
  std::vector<int64_t> all, written;
  std::vector<size_t> lengths;
  SentencePairs pairs({.max_seq_len = 19, .seed = 1}, [&](auto first, auto second) {
    written.insert(written.end(), first.begin(), first.end());
    written.insert(written.end(), second.begin(), second.end());
    EXPECT_FALSE(first.empty());
    EXPECT_LE(first.size() + second.size(), 16U);
    lengths.push_back(first.size() + second.size());
  });
  SplitMix64 random({5});
  for (int i = 0; i < 200; ++i) {
    std::vector<int64_t> sentence(random.below(30));
    for (auto& id : sentence) all.push_back(id = static_cast<int64_t>(random.below(1000)));
    pairs.add(sentence);
  }
  pairs.end_document();
  EXPECT_EQ(written, all);
  for (size_t i = 0; i + 1 < lengths.size(); ++i) EXPECT_GT(lengths[i], 8U);  // half full at least
}

TEST_F(TokenizeTest, GoesFromTextToBatches) {
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += format("The {} cat sat on the mat. Was it happy?\nIt was, {} times over.\n\n", i, i);
  folder_.write("a.txt", text);
  const std::vector<std::string> command = {
      "tokenize", path("a.txt"),        "--train_vocab", "80", "--vocab", path("new/vocab.txt"),
      "--output", path("data/part.gz"), "--max_seq_len", "32"};
  EXPECT_TRUE(says(output_of(command), "vocab.txt: 80 tokens", "part.gz: ", " 0 of them unknown"));
  EXPECT_TRUE(says(error_message_of([&] { output_of(command); }), "is there already"));
  const auto vocabulary = Vocabulary::load(path("new/vocab.txt"));
  const auto samples = TextSamples::load(path("data"), vocabulary, 32);
  EXPECT_EQ(samples.too_long(), 0);
  std::vector<int64_t> words;
  for (int64_t i = 0; i < samples.size(); ++i) {
    for (const int32_t id : samples[i].tokens) {
      if (!vocabulary.is_special(id)) words.push_back(id);
    }
  }
  EXPECT_EQ(words, WordPiece(vocabulary).encode(text));
  auto data = load_digital_dataset_from_file({.data_dir = path("data"),
                                              .vocab_path = path("new/vocab.txt"),
                                              .max_seq_len = 32,
                                              .batch_size = 5});
  EXPECT_EQ(data.next().size(), 5);
}

TEST_F(TokenizeTest, TakesBertsInputFormatToo) {
  folder_.write("v", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n");
  folder_.write("a.txt", "a b\nb. c\n\nc\n");
  EXPECT_TRUE(says(output_of({"tokenize", path("a.txt"), "--vocab", path("v"), "--output",
                              path("out"), "--sentence_per_line"}),
                   "2 samples, 6 tokens, 1 of them unknown"));
  const auto samples = TextSamples::load(path("out"), Vocabulary::load(path("v")), 32);
  ASSERT_EQ(samples.size(), 2);
  EXPECT_EQ(samples[0].first_length, 4);
  EXPECT_EQ(samples[0].tokens.size(), 8U);
  EXPECT_FALSE(samples[1].has_second());
}

TEST_F(TokenizeTest, SaysWhatItNeeds) {
  EXPECT_TRUE(says(error_message_of<UsageError>([] { output_of({"tokenize"}); }), "no text file",
                   "--output says"));
  folder_.write("v", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
  folder_.write("empty", "\n");
  EXPECT_TRUE(
      says(error_message_of([&] {
             output_of({"tokenize", path("empty"), "--vocab", path("v"), "--output", path("out")});
           }),
           "no words in the texts"));
  EXPECT_FALSE(std::filesystem::exists(path("out")));
  EXPECT_TRUE(says(
      error_message_of([&] {
        output_of({"tokenize", path("empty"), "--vocab", path("v"), "--output", path("v/out")});
      }),
      "cannot write", "Not a directory"));
}

TEST_F(TokenizeTest, MissingVocabularyIsToldWithHowToMakeOne) {
  folder_.write("book.txt", "the cat sat on the mat.\n");
  EXPECT_TRUE(says(
      error_message_of<UsageError>([&] {
        output_of({"tokenize", path("book.txt"), "--vocab", path("v"), "--output", path("out")});
      }),
      "--vocab: there is no " + path("v"), "--train_vocab 8000"));
}

TEST_F(TokenizeTest, NeverOverwritesWhatItReads) {
  const std::string book = "the cat sat on the mat. was it happy?\n",
                    vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n";
  folder_.write("book.txt", book);
  folder_.write("vocab.txt", vocabulary);
  std::filesystem::create_symlink("book.txt", path("link"));
  std::filesystem::create_hard_link(path("vocab.txt"), path("hard"));
  for (const auto* output : {"book.txt", "./book.txt", "link", "vocab.txt", "hard"}) {
    EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                       output_of({"tokenize", path("book.txt"), "--vocab", path("vocab.txt"),
                                  "--output", path(output)});
                     }),
                     "--output", "itself, which would be lost"));
  }
  EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                     output_of({"tokenize", path("book.txt"), "--train_vocab", "20", "--vocab",
                                path("new"), "--output", path("new")});
                   }),
                   "--vocab and --output are the same file"));
  EXPECT_EQ(launch::contents(path("book.txt")), book);
  EXPECT_EQ(launch::contents(path("vocab.txt")), vocabulary);
  EXPECT_FALSE(std::filesystem::exists(path("new")));
}

TEST_F(TokenizeTest, EmptyTextLeavesNoVocabulary) {
  folder_.write("empty", "\n");
  EXPECT_TRUE(says(error_message_of([&] {
                     output_of({"tokenize", path("empty"), "--train_vocab", "20", "--vocab",
                                path("v"), "--output", path("out")});
                   }),
                   "there are no words to make a vocabulary of"));
  EXPECT_FALSE(std::filesystem::exists(path("v")));
}

}  // namespace
}  // namespace fleet::tool
