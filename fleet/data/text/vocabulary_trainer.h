// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "fleet/data/text/vocabulary.h"
#include "fleet/data/text/word_split.h"

namespace fleet {

struct VocabularyTrainerOptions {
  int64_t size = 30522;         ///< tokens at most; less text gives fewer
  int64_t min_count = 2;        ///< a piece must occur so often
  int64_t max_alphabet = 1000;  ///< the commonest code points; words with others are unknown
  WordSplitOptions words = {};
};

/// Makes a vocabulary for WordPiece from text: the special tokens, the alphabet, and then the pair
/// of neighbouring pieces that occurs most often, joined, again and again.
///
/// The result follows from the words and how often each comes, not from their order.
///
///   VocabularyTrainer trainer({.size = 8000});
///   while (std::getline(text, line)) trainer.add(line);
///   trainer.train().save("vocab.txt");
class VocabularyTrainer {
 public:
  explicit VocabularyTrainer(const VocabularyTrainerOptions& options = {});

  void add(std::string_view text);
  Vocabulary train() const;

 private:
  VocabularyTrainerOptions options_;
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace fleet
