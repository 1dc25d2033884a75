// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/sentence_pairs.h"

#include <algorithm>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr size_t kLongestSentence = 64 << 10;  // bytes: what never ends is no sentence

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> words,
                     size_t& length) {
  for (const auto word : words) {
    if (text.starts_with(word)) {
      length = word.size();
      return true;
    }
  }
  return false;
}

// Where the first sentence of `text` that has not ended before `from` ends, or npos.
size_t end_of_sentence(std::string_view text, size_t from) {
  size_t length = 0;
  for (size_t at = from; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte == 0xE3 || byte == 0xEF) {  // with which these begin
      if (starts_with_any(text.substr(at), {"。", "！", "？"}, length)) return at + length;
    }
    if (byte != '.' && byte != '!' && byte != '?') continue;
    size_t behind = at + 1;
    while (starts_with_any(text.substr(behind), {".", "!", "?", "\"", "'", ")", "]", "”", "’", "»"},
                           length)) {
      behind += length;
    }
    if (behind < text.size() && (text[behind] == ' ' || text[behind] == '\t')) return behind;
    at = behind - 1;
  }
  return text.npos;
}

}  // namespace

SentenceSplitter::SentenceSplitter(std::function<void(std::string_view)> take)
    : take_(std::move(take)) {}

void SentenceSplitter::add_line(std::string_view line) {
  if (line.find_first_not_of(" \t\r\f\v") == line.npos) return finish();
  size_t from = text_.size();  // before which no sentence ends, or it would not be here
  text_.append(line).push_back(' ');
  std::string_view rest = text_;
  for (size_t end; (end = end_of_sentence(rest, from)) != rest.npos; from = 0) {
    take_(rest.substr(0, end));
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t", end), rest.size()));
  }
  text_.erase(0, text_.size() - rest.size());
  if (text_.size() > kLongestSentence) finish();
}

void SentenceSplitter::finish() {
  if (!text_.empty()) take_(text_);
  text_.clear();
}

SentencePairs::SentencePairs(const Options& options, std::function<void(Tokens, Tokens)> take)
    : room_(options.max_seq_len - 3), random_({0x5350, options.seed}), take_(std::move(take)) {
  if (room_ < 4) {
    throw UsageError("tokenize",
                     format("max_seq_len {} has no room for two sentences", options.max_seq_len),
                     "use 8 at least");
  }
}

void SentencePairs::add(Tokens sentence) {
  const auto half = static_cast<size_t>(room_ / 2);
  while (!sentence.empty()) {
    const auto part = sentence.first(std::min(half, sentence.size()));
    if (tokens_.size() + part.size() > static_cast<size_t>(room_)) end_document();
    tokens_.insert(tokens_.end(), part.begin(), part.end());
    cuts_.push_back(tokens_.size());
    sentence = sentence.subspan(part.size());
  }
}

void SentencePairs::end_document() {
  if (tokens_.empty()) return;
  cuts_.pop_back();  // the end is no place between two sentences
  size_t cut = tokens_.size() / 2;
  if (!cuts_.empty()) cut = cuts_[random_.below(cuts_.size())];
  if (cut == 0) cut = tokens_.size();
  take_(Tokens(tokens_).first(cut), Tokens(tokens_).subspan(cut));
  tokens_.clear();
  cuts_.clear();
}

}  // namespace fleet
