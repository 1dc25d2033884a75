// SPDX-License-Identifier: Apache-2.0
// Raw text to tokens.

#include "fleet/data/text/word_piece.h"

#include "fuzz/small_vocabulary.h"
#include "fuzz/target.h"

namespace fleet::fuzz {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += word + ' ';
  return text;
}

void check_words(std::string_view text, const WordSplitOptions& options) {
  const auto words = split_words(text, options);
  size_t bytes = 0;
  for (const auto& word : words) {
    require(!word.empty(), "a word has a letter");
    require(word.find_first_of(std::string_view(" \t\r\n\0\x7F", 6)) == word.npos,
            "a word has no white space");
    bytes += word.size();
  }
  require(bytes <= 12 * text.size(), "text does not grow without bounds");
  require(split_words(joined(words), options) == words, "words stay words");
}

void run(Bytes bytes) {
  static const WordPiece tokenizer(small_vocabulary());
  const auto text = text_of(bytes);
  check_words(text, {});
  check_words(text, {.lower_case = false, .split_cjk = false});
  for (const int64_t id : tokenizer.encode(text)) {
    require(id >= 0 && id < small_vocabulary().size(), "tokens are in the vocabulary");
    require(id == small_vocabulary().unknown() || !small_vocabulary().is_special(id),
            "text is never a special token");
  }
}

const Target target("word_piece", run);

}  // namespace
}  // namespace fleet::fuzz
