// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fleet {

/// How text is normalised and split.
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

}  // namespace fleet
