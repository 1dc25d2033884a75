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

// Some number above `most`, when it is above.
size_t edit_distance(std::string_view a, std::string_view b, size_t most) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
    if (*std::ranges::min_element(row) > most) return most + 1;  // no row is below the one before
  }
  return row[b.size()];
}

struct Folded {
  std::string text;                 // lower case, without separators
  std::vector<size_t> word_starts;  // in it
};

Folded folded(std::string_view name) {
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
bool has_word(const Folded& name, const Folded& words) {
  constexpr size_t kShortest = 3;
  return words.text.size() >= kShortest && std::ranges::any_of(name.word_starts, [&](size_t at) {
           return name.text.compare(at, words.text.size(), words.text) == 0;
         });
}

// "grad_merge" is gradient_merge: each of its words begins one of the name's, in their order.
bool is_short_for(const Folded& words, const Folded& name) {
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

}  // namespace

std::vector<std::string> nearest_names(std::string_view wanted,
                                       const std::vector<std::string>& known, size_t most) {
  if (wanted.size() > kLongestName) return {};
  const auto want = folded(wanted);
  const size_t limit = std::max<size_t>(2, want.text.size() / 3);
  std::vector<std::pair<size_t, std::string>> near;
  for (const auto& name : known) {
    const auto have = folded(name);
    // Lengths that differ by more make a distance above the limit.
    const bool may_be_near = want.text.size() <= have.text.size() + limit &&
                             have.text.size() <= want.text.size() + limit;
    size_t distance = may_be_near ? edit_distance(want.text, have.text, limit) : limit + 1;
    if (has_word(have, want) || has_word(want, have) || is_short_for(want, have))
      distance = std::min<size_t>(distance, 2);
    if (distance <= limit) near.emplace_back(distance, name);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [distance, name] : near) {
    if (names.size() < most) names.push_back(name);
  }
  return names;
}

std::string did_you_mean(std::string_view wanted, const std::vector<std::string>& known) {
  const auto names = nearest_names(wanted, known);
  if (names.empty()) return "";
  std::string text = " (did you mean";
  for (size_t i = 0; i < names.size(); ++i) {
    text += format("{} '{}'", i == 0 ? "" : i + 1 == names.size() ? " or" : ",", names[i]);
  }
  return text + "?)";
}

}  // namespace fleet
