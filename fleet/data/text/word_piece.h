// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fleet/data/text/vocabulary.h"
#include "fleet/data/text/word_split.h"

namespace fleet {

/// How words are normalised before they are looked up.
struct WordPieceOptions {
  bool lower_case = true;  ///< as the vocabulary was made: "uncased"
  bool split_cjk = true;
  int64_t max_word_length = 100;  ///< in code points; a longer word is unknown
};

/// BERT's tokenizer: words as in split_words, each in the longest pieces of the vocabulary from
/// left to right; a word with no such pieces is [UNK].
///
/// The tokens of transformers' BertTokenizer for the same vocabulary. What looks like a special
/// token in the text is text: a literal "[MASK]" is not a mask token.
///
///   fleet::WordPiece tokenizer(fleet::Vocabulary::load("vocab.txt"));
///   auto ids = tokenizer.encode("Unaffable!");   // un ##aff ##able !
class WordPiece {
 public:
  /// The vocabulary must hold [UNK].
  explicit WordPiece(Vocabulary vocabulary, const WordPieceOptions& options = {});

  /// Without [CLS] and [SEP].
  std::vector<int64_t> encode(std::string_view text) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  void encode_word(const std::string& word, std::vector<int64_t>& ids) const;

  Vocabulary vocabulary_;
  WordPieceOptions options_;
  int64_t unknown_ = 0;
};

}  // namespace fleet
