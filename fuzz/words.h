// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fleet/core/options/options.h"

#include "fuzz/target.h"

namespace fleet::fuzz {

/// The lines of the input as the words of a command line. As there, none holds a zero.
inline std::vector<std::string> words_of(Bytes bytes) {
  std::vector<std::string> words;
  for (auto text = text_of(bytes); !text.empty();) {
    const auto word = text.substr(0, text.find('\n'));
    words.emplace_back(word.substr(0, word.find('\0')));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return words;
}

/// Without words that ask for help, which is long and the same whatever else is asked, unless there
/// is hardly anything else.
inline std::vector<std::string> without_help(std::vector<std::string> words) {
  constexpr size_t kHardlyAny = 3;
  if (words.size() > kHardlyAny)
    std::erase_if(words, [](const auto& word) { return word == "--help" || word == "-h"; });
  return words;
}

/// "--lr=0.1" for every value that differs from `defaults`.
inline std::vector<std::string> flags_for(OptionsView options, OptionsView defaults) {
  const auto now = leaves(options), before = leaves(defaults);
  std::vector<std::string> flags;
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i].value() != before[i].value())
      flags.push_back("--" + now[i].path + "=" + to_text(now[i].value()));
  }
  return flags;
}

inline bool are_equal(OptionsView a, OptionsView b) {
  const auto left = leaves(a), right = leaves(b);
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].value() != right[i].value()) return false;
  }
  return true;
}

}  // namespace fleet::fuzz
