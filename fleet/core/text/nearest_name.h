// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fleet {

/// The names that `wanted` was probably meant to be, best first: small edit distance, or one is
/// part of the other. Empty when nothing is near.
std::vector<std::string> nearest_names(std::string_view wanted,
                                       const std::vector<std::string>& known, size_t most = 3);

/// " (did you mean 'k_steps'?)", or "" when nothing is near: to be appended to an error.
std::string did_you_mean(std::string_view wanted, const std::vector<std::string>& known);

/// Names that several wanted ones are compared with: they are taken apart once.
class KnownNames {
 public:
  explicit KnownNames(std::vector<std::string> names);

  std::vector<std::string> nearest(std::string_view wanted, size_t most = 3) const;
  std::string did_you_mean(std::string_view wanted) const;

 private:
  struct Folded {
    std::string text;                 // lower case, without separators
    std::vector<size_t> word_starts;  // in it
  };
  static Folded folded(std::string_view name);
  static bool has_word(const Folded& name, const Folded& words);
  static bool is_short_for(const Folded& words, const Folded& name);

  std::vector<std::string> names_;
  std::vector<Folded> folded_;
};

}  // namespace fleet
