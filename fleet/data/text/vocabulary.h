// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fleet {

/// The tokens of a model and their numbers.
///
///   auto vocabulary = fleet::Vocabulary::load("vocab.txt");
///   vocabulary.find("##ing");   // its number, or nothing
///   vocabulary.mask();          // the number of [MASK]
class Vocabulary {
 public:
  /// Must hold [PAD], [CLS], [SEP] and [MASK], and no token twice.
  explicit Vocabulary(std::vector<std::string> tokens);

  /// A token per line, numbered from 0; or with a tab and its number on every line. A line that
  /// is neither is an Error which names it.
  static Vocabulary load(const std::filesystem::path& path);
  void save(const std::filesystem::path& path) const;

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::string& token(int64_t id) const { return tokens_.at(static_cast<size_t>(id)); }
  std::optional<int64_t> find(std::string_view token) const;

  int64_t pad() const { return pad_; }
  int64_t start() const { return start_; }
  int64_t separator() const { return separator_; }
  int64_t mask() const { return mask_; }
  std::optional<int64_t> unknown() const { return find("[UNK]"); }
  /// [PAD], [UNK], [CLS], [SEP] or [MASK].
  bool is_special(int64_t id) const;

 private:
  Vocabulary(std::vector<std::string> tokens, const std::string& source);

  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> ids_;
  int64_t pad_ = 0, start_ = 0, separator_ = 0, mask_ = 0;
};

}  // namespace fleet
