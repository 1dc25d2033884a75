// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/word_piece.h"

#include <algorithm>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

bool begins_code_point(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

WordPiece::WordPiece(Vocabulary vocabulary, const WordPieceOptions& options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  const auto unknown = vocabulary_.unknown();
  if (!unknown) {
    throw UsageError("word_piece",
                     "the vocabulary has no [UNK], so unknown words cannot be written",
                     "take the vocabulary of a BERT, or make one with fleet tokenize");
  }
  unknown_ = *unknown;
}

std::vector<int64_t> WordPiece::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  const auto words =
      split_words(text, {.lower_case = options_.lower_case, .split_cjk = options_.split_cjk});
  for (const auto& word : words) encode_word(word, ids);
  return ids;
}

void WordPiece::encode_word(const std::string& word, std::vector<int64_t>& ids) const {
  const auto before = ids.size();
  const auto length = std::count_if(word.begin(), word.end(), begins_code_point);
  std::string piece;
  size_t begin = length <= options_.max_word_length ? 0 : word.npos;
  while (begin < word.size()) {
    std::optional<int64_t> found;
    size_t end = word.size();
    for (; end > begin; --end) {
      if (end < word.size() && !begins_code_point(word[end])) continue;
      piece.assign(begin > 0 ? "##" : "").append(word, begin, end - begin);
      if ((found = vocabulary_.find(piece))) break;
    }
    if (!found) {
      begin = word.npos;
      break;
    }
    ids.push_back(*found);
    begin = end;
  }
  if (begin == word.npos) {
    ids.resize(before);
    ids.push_back(unknown_);
  }
}

}  // namespace fleet
