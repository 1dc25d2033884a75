// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/text/nearest_name.h"

#include <algorithm>
#include <cctype>
#include <numeric>

#include "fleet/core/text/format.h"

namespace fleet {
namespace {

// No name is longer. The time for a distance grows with the text, which may be a whole file.
constexpr size_t kLongestName = 200;

// Some number above `most`, when it is above. `row` is room for the distances from the beginnings
// of `a` to those of `b`; where their lengths differ by more than `most`, so do they.
size_t edit_distance(std::string_view a, std::string_view b, size_t most,
                     std::vector<size_t>& row) {
  row.resize(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    const size_t first = i > most ? i - most : 1;
    const size_t last = std::min(b.size(), i + most);
    if (first > last + 1) return most + 1;
    size_t diagonal = row[first - 1];
    size_t least = row[first - 1] = first == 1 ? i : most + 1;
    for (size_t j = first; j <= last; ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      least = std::min(least, row[j]);
    }
    if (least > most) return most + 1;  // no row is below the one before
  }
  return row[b.size()];
}

}  // namespace

KnownNames::Folded KnownNames::folded(std::string_view name) {
  Folded out;
  bool is_start = true;
  for (const char c : name) {
    const bool is_separator = c == '_' || c == '-';
    if (!is_separator) {
      if (is_start) out.word_starts.push_back(out.text.size());
      out.text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    is_start = is_separator || c == '.';
  }
  return out;
}

// "size" is in batch_size, but "load" is not in enable_offload.
bool KnownNames::has_word(const Folded& name, const Folded& words) {
  constexpr size_t kShortest = 3;
  return words.text.size() >= kShortest && std::ranges::any_of(name.word_starts, [&](size_t at) {
           return name.text.compare(at, words.text.size(), words.text) == 0;
         });
}

// "grad_merge" is gradient_merge: each of its words begins one of the name's, in their order.
bool KnownNames::is_short_for(const Folded& words, const Folded& name) {
  if (words.word_starts.size() < 2) return false;
  size_t at = 0;  // of the next word of the name that may be meant
  for (size_t i = 0; i < words.word_starts.size(); ++i) {
    const size_t begin = words.word_starts[i];
    const size_t end =
        i + 1 < words.word_starts.size() ? words.word_starts[i + 1] : words.text.size();
    const auto word = std::string_view(words.text).substr(begin, end - begin);
    const auto begins = [&](size_t start) {
      return std::string_view(name.text).substr(start).starts_with(word);
    };
    while (at < name.word_starts.size() && !begins(name.word_starts[at])) ++at;
    if (at++ == name.word_starts.size()) return false;
  }
  return true;
}

KnownNames::KnownNames(std::vector<std::string> names) : names_(std::move(names)) {
  folded_.reserve(names_.size());
  for (const auto& name : names_) folded_.push_back(folded(name));
}

std::vector<std::string> KnownNames::nearest(std::string_view wanted, size_t most) const {
  if (wanted.size() > kLongestName) return {};
  const auto want = folded(wanted);
  const size_t limit = std::max<size_t>(2, want.text.size() / 3);
  std::vector<std::pair<size_t, size_t>> near;  // distance, place
  std::vector<size_t> row;
  for (size_t place = 0; place < names_.size(); ++place) {
    const auto& have = folded_[place];
    // Lengths that differ by more make a distance above the limit.
    const bool may_be_near = want.text.size() <= have.text.size() + limit &&
                             have.text.size() <= want.text.size() + limit;
    size_t distance = may_be_near ? edit_distance(want.text, have.text, limit, row) : limit + 1;
    if (has_word(have, want) || has_word(want, have) || is_short_for(want, have))
      distance = std::min<size_t>(distance, 2);
    if (distance <= limit) near.emplace_back(distance, place);
  }
  std::ranges::sort(near);
  std::vector<std::string> nearest;
  for (const auto& [distance, place] : near) {
    if (nearest.size() < most) nearest.push_back(names_[place]);
  }
  return nearest;
}

std::string KnownNames::did_you_mean(std::string_view wanted) const {
  const auto names = nearest(wanted);
  if (names.empty()) return "";
  std::string text = " (did you mean";
  for (size_t i = 0; i < names.size(); ++i) {
    text += format("{} '{}'", i == 0 ? "" : i + 1 == names.size() ? " or" : ",", names[i]);
  }
  return text + "?)";
}

std::vector<std::string> nearest_names(std::string_view wanted,
                                       const std::vector<std::string>& known, size_t most) {
  return KnownNames(known).nearest(wanted, most);
}

std::string did_you_mean(std::string_view wanted, const std::vector<std::string>& known) {
  return KnownNames(known).did_you_mean(wanted);
}

}  // namespace fleet
