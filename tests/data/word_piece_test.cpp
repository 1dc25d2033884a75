// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/word_piece.h"

#include <fstream>
#include <iomanip>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fleet/core/error.h"
#include "fleet/data/text/vocabulary_trainer.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;
using Words = std::vector<std::string>;

const nlohmann::json& golden() {
  static const auto file = nlohmann::json::parse(std::ifstream(FLEET_WORD_PIECE_FILE));
  return file;
}

std::string utf8(uint32_t code) {
  std::string out;
  const auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6), add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12), add(0x80 | (code >> 6 & 0x3F)), add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18), add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F)), add(0x80 | (code & 0x3F));
  }
  return out;
}

TEST(WordPieceTest, AgreesWithTransformers) {
  const Vocabulary vocabulary(golden()["vocab"].get<Words>());
  for (const auto& given : golden()["cases"]) {
    const WordPiece tokenizer(vocabulary, {.lower_case = given["lower_case"].get<bool>()});
    const auto ids = tokenizer.encode(given["text"].get<std::string>());
    EXPECT_EQ(ids, given["ids"].get<std::vector<int64_t>>()) << given["text"];
  }
}

TEST(WordSplitTest, AgreesWithTransformersOnEveryCodePoint) {
  std::vector<bool> changed(0x110000);
  int64_t left_out = 0;
  for (const auto& range : golden()["changed"]) {
    for (int64_t c = range[0]; c <= range[1]; ++c)
      changed[static_cast<size_t>(c)] = true, ++left_out;
  }
  EXPECT_LT(left_out, 600);
  for (const auto& block : golden()["sweep"]) {
    const WordSplitOptions options{.lower_case = block["lower_case"].get<bool>()};
    uint64_t hash = 0xCBF29CE484222325;
    for (uint32_t c = block["first"]; c <= block["last"]; ++c) {
      if (changed[c] || (c >= 0xD800 && c < 0xE000)) continue;
      for (const auto& word : split_words("Aa" + utf8(c) + "bB", options)) {
        for (const char byte : word + "\n")
          hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
      }
    }
    std::ostringstream text;
    text << std::hex << std::setw(16) << std::setfill('0') << hash;
    EXPECT_EQ(text.str(), block["hash"]) << block;
  }
}

TEST(WordSplitTest, LeavesOutMalformedBytes) {
  EXPECT_EQ(split_words("a\xff"
                        "b \xc3 c\xe4\xb8 \xc0\xafx \xed\xa0\x80y \xf4\x90\x80\x80z \xe4"),
            (Words{"ab", "c", "x", "y", "z"}));
}

TEST(WordPieceTest, TakesSpecialTokensInTextForText) {
  const WordPiece tokenizer(
      Vocabulary({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "mask"}));
  EXPECT_EQ(tokenizer.encode("[MASK]"), (std::vector<int64_t>{5, 7, 6}));
}

TEST(VocabularyTest, ReadsBothFormsAndWritesThePlainOne) {
  TemporaryFolder folder;
  const auto plain = folder.write("plain", "[PAD]\n[CLS]\r\n[SEP]\n[MASK]\nword");
  const auto numbered =
      folder.write("numbered", "word\t4\n[MASK]\t3\n[SEP]\t2\n[CLS]\t1\n[PAD]\t0\n");
  for (const auto& path : {plain, numbered}) {
    const auto vocabulary = Vocabulary::load(path);
    EXPECT_EQ(vocabulary.size(), 5);
    EXPECT_EQ(vocabulary.find("word"), 4);
    EXPECT_EQ(vocabulary.find("other"), std::nullopt);
    EXPECT_EQ(vocabulary.mask(), 3);
    EXPECT_TRUE(vocabulary.is_special(1));
    EXPECT_FALSE(vocabulary.is_special(4));
    vocabulary.save(folder.path() / "saved");
    EXPECT_EQ(Vocabulary::load(folder.path() / "saved").token(4), "word");
  }
  EXPECT_TRUE(
      says(error_message_of([&] { WordPiece tokenizer(Vocabulary::load(plain)); }), "no [UNK]"));
}

TEST(VocabularyTest, NamesTheLineThatIsWrong) {
  TemporaryFolder folder;
  const auto refusal = [&](const char* text) {
    const auto path = folder.write("vocab", text);
    const auto error = error_message_of([&] { Vocabulary::load(path); });
    EXPECT_TRUE(says(error, path.string()));
    return error;
  };
  EXPECT_TRUE(says(refusal("[PAD]\n\nx\n"), "vocab:2: no token"));
  EXPECT_TRUE(says(refusal("[PAD]\t0\nx\n"), "vocab:2: a tab and a number on some lines only"));
  EXPECT_TRUE(says(refusal("[PAD]\t0\nx\tone\n"), "vocab:2: 'one' is no number"));
  EXPECT_TRUE(says(refusal("[PAD]\t0\nx\t2\n"), "vocab:2: number 2 of a vocabulary of 2"));
  EXPECT_TRUE(says(refusal("[PAD]\t0\nx\t0\n"), "vocab:2: number 0 occurs twice"));
  EXPECT_TRUE(says(refusal("[PAD]\nx\r\r\n"), "vocab:2: a token that ends in a carriage return"));
  EXPECT_TRUE(says(refusal("[PAD]\t0\nx\r\t1\n"), "vocab:2: a token that ends in a carriage"));
  EXPECT_TRUE(says(refusal("[PAD]\nx\nx\n"), "'x' occurs twice", "[CLS] is not in it",
                   "[SEP] is not in it", "[MASK] is not in it"));
  EXPECT_TRUE(says(error_message_of([&] { Vocabulary::load(folder.path() / "absent"); }),
                   "cannot read", "absent: no such file", "fleet tokenize --train_vocab"));
}

TEST(VocabularyTest, AFileThatIsNoVocabularyFillsNoScreenAndSteersNone) {
  TemporaryFolder folder;
  const auto refusal = [&](std::string_view text) {
    return error_message_of<UsageError>([&] { Vocabulary::load(folder.write("vocab", text)); });
  };
  EXPECT_TRUE(says(refusal(std::string_view("[PAD]\nx\0\n", 9)), "vocab:2: a NUL byte"));
  EXPECT_TRUE(says(refusal("\x1b[2J\n\x1b[2J\n"), "'\\x1b[2J' occurs twice"));
  EXPECT_TRUE(says(refusal("x\t\x1b[2J\n"), "vocab:1: '\\x1b[2J' is no number"));
  std::string same;
  for (int i = 0; i < 1000; ++i) same += "x\n";
  EXPECT_TRUE(says(refusal(same), "'x' occurs twice", "994 more occur twice"));
}

Words tokens_of(const Vocabulary& vocabulary) {
  Words tokens;
  for (int64_t id = 0; id < vocabulary.size(); ++id) tokens.push_back(vocabulary.token(id));
  return tokens;
}

// By hand: ##w ##e comes 8 times (lower, newest); then l ##o 7 times. Of the pairs that come 6
// times, the older pieces win: n ##e, and then ##s ##t before the new ne ##we and ##we ##s.
TEST(VocabularyTrainerTest, RefusesToMakeAVocabularyOfNothing) {
  VocabularyTrainer trainer({.size = 60});
  trainer.add(" \t");
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { trainer.train(); }),
                   "[vocabulary] there are no words to make a vocabulary of"));
}

TEST(VocabularyTrainerTest, JoinsTheCommonestPairFirst) {
  VocabularyTrainer trainer({.size = 5 + 8 + 4});
  for (int i = 0; i < 5; ++i) trainer.add("low");
  for (int i = 0; i < 2; ++i) trainer.add("lower");
  for (int i = 0; i < 6; ++i) trainer.add("Newest");
  EXPECT_EQ(tokens_of(trainer.train()),
            (Words{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "l", "n", "##e", "##o", "##r",
                   "##s", "##t", "##w", "##we", "lo", "ne", "##st"}));
}

TEST(VocabularyTrainerTest, DependsOnTheWordsAndNotOnTheirOrder) {
  const Words lines = {"the cat sat on the mat", "the mat sat on the cat, and that was that",
                       "\u5317\u4eac \u5317", "a rare\u16a0rune"};
  VocabularyTrainer forward({.size = 60, .max_alphabet = 15}),
      backward({.size = 60, .max_alphabet = 15});
  for (size_t i = 0; i < lines.size(); ++i) {
    forward.add(lines[i]);
    backward.add(lines[lines.size() - 1 - i]);
  }
  const auto vocabulary = forward.train();
  EXPECT_EQ(tokens_of(vocabulary), tokens_of(backward.train()));
  EXPECT_EQ(vocabulary.find("##\u16a0"), std::nullopt);  // outside the alphabet
  EXPECT_TRUE(vocabulary.find("the"));
  const WordPiece tokenizer(vocabulary);
  for (const auto id : tokenizer.encode("the cat sat on the mat that"))
    EXPECT_NE(id, *vocabulary.unknown());
  EXPECT_EQ(tokenizer.encode("rare\u16a0rune"), std::vector<int64_t>{*vocabulary.unknown()});
}

// Every occurrence is counted as it stands after the joins before: checked against counting anew.
TEST(VocabularyTrainerTest, KeepsItsCountsRight) {
  VocabularyTrainer trainer({.size = 1000, .min_count = 1});
  const Words words = {"aaaa", "aaaab", "banana", "bananas", "ananas", "abababab", "baba"};
  for (const auto& word : words) trainer.add(word);
  const auto vocabulary = trainer.train();
  for (const auto& word : words)
    EXPECT_TRUE(vocabulary.find(word)) << word;  // nothing left to join
}

}  // namespace
}  // namespace fleet
