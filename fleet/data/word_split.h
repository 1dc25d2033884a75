#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fleet {

struct WordSplitOptions {
  bool lower_case = true;  ///< and without accents: "Café" is "cafe"
  bool split_cjk = true;   ///< every Chinese character is a word of its own
};

/// Text, which is UTF-8, in the words that BERT knows: cut at white space and around punctuation,
/// without control characters and malformed bytes.
///
/// As BERT's tokenizer of transformers does it, but for some 500 code points that have changed
/// since the Unicode 8 of its tables (these are of Unicode 14), and for the order of a dozen
/// musical and tone marks, which is left as it is written.
///
///   split_words("Don't\tpanic!")   // don ' t panic !
std::vector<std::string> split_words(std::string_view text, const WordSplitOptions& options = {});

/// Bytes of the UTF-8 sequence that begins with this byte; 1 for a byte that begins none.
constexpr size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
}

}  // namespace fleet
