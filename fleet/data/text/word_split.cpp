// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/word_split.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "fleet/core/text/utf8.h"

namespace fleet {
namespace {

enum Kind : uint8_t { kPlain, kRemoved, kSpace, kPunctuation, kMark };

struct KindRange {
  uint32_t first, last;
  Kind kind;
};
// Every `step`th code point from first to last becomes itself + delta.
struct FoldRange {
  uint32_t first, last;
  int32_t step, delta;
};
struct LongFold {
  uint32_t code;
  uint32_t to[3];
};

#include "fleet/data/text/unicode_tables.inl"

template <typename Range, size_t N>
const Range* range_of(const Range (&table)[N], uint32_t code) {
  const auto* next =
      std::upper_bound(std::begin(table), std::end(table), code,
                       [](uint32_t c, const Range& range) { return c < range.first; });
  return next != std::begin(table) && code <= (next - 1)->last ? next - 1 : nullptr;
}

Kind kind_of(uint32_t code) {
  const auto* range = range_of(kKinds, code);
  return range ? range->kind : kPlain;
}

bool is_cjk(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
         (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

constexpr uint32_t kReplacement = 0xFFFD;  // which the tables remove

void encode(uint32_t code, std::string& out) {
  const auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xE0 | code >> 12);
    } else {
      add(0xF0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3F));
    }
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

// Calls `take` with every code point of `code` in lower case and without accents.
template <typename Take>
void fold(uint32_t code, const Take& take) {
  constexpr uint32_t kSyllables = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
  if (code < 0x80) return take(code >= 'A' && code <= 'Z' ? code + 32 : code);
  if (code >= kSyllables && code < kSyllables + 11172) {  // Hangul, into its letters
    const uint32_t syllable = code - kSyllables;
    take(kLead + syllable / 588);
    take(kVowel + syllable % 588 / 28);
    if (syllable % 28 != 0) take(kTail + syllable % 28);
    return;
  }
  if (const auto* range = range_of(kFolds, code)) {
    const bool is_in = (code - range->first) % static_cast<uint32_t>(range->step) == 0;
    return take(is_in ? code + static_cast<uint32_t>(range->delta) : code);
  }
  const auto* known =
      std::lower_bound(std::begin(kLongFolds), std::end(kLongFolds), code,
                       [](const LongFold& entry, uint32_t c) { return entry.code < c; });
  if (known == std::end(kLongFolds) || known->code != code) return take(code);
  for (const uint32_t part : known->to) {
    if (part != 0) take(part);
  }
}

}  // namespace

std::vector<std::string> split_words(std::string_view text, const WordSplitOptions& options) {
  std::vector<std::string> words;
  std::string word;
  const auto finish = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  const auto add = [&](uint32_t code) {
    const bool alone = kind_of(code) == kPunctuation;
    if (alone) finish();
    encode(code, word);
    if (alone) finish();
  };
  for (size_t at = 0; at < text.size();) {
    uint32_t code = decode_utf8(text, at);
    if (code == kMalformedUtf8) code = kReplacement;
    const Kind kind = kind_of(code);
    if (kind == kRemoved || (kind == kMark && options.lower_case)) continue;
    if (kind == kSpace) {
      finish();
      continue;
    }
    const bool alone = options.split_cjk && is_cjk(code);
    if (alone) finish();
    if (options.lower_case) {
      fold(code, add);
    } else {
      add(code);
    }
    if (alone) finish();
  }
  finish();
  return words;
}

}  // namespace fleet
