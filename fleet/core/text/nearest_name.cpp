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

size_t edit_distance(std::string_view a, std::string_view b) {
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
  }
  return row[b.size()];
}

std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != '_' && c != '-') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view wanted,
                                       const std::vector<std::string>& known, size_t most) {
  if (wanted.size() > kLongestName) return {};
  const std::string want = folded(wanted);
  std::vector<std::pair<size_t, std::string>> near;
  for (const auto& name : known) {
    const std::string have = folded(name);
    size_t distance = edit_distance(want, have);
    const bool part =
        want.size() >= 3 && have.size() >= 3 &&
        (have.find(want) != std::string::npos || want.find(have) != std::string::npos);
    if (part) distance = std::min<size_t>(distance, 2);
    if (distance <= std::max<size_t>(2, want.size() / 3)) near.emplace_back(distance, name);
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
