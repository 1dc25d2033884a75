// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/vocabulary.h"

#include <charconv>
#include <fstream>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"
#include "fleet/io/atomic_file.h"

namespace fleet {
namespace {

constexpr size_t kMaxShown = 60;  // bytes of a token in a message

[[noreturn]] void refuse(const std::filesystem::path& path, size_t line, const std::string& what) {
  throw UsageError(
      "vocabulary", format("{}:{}: {}", path.string(), line, what),
      "one token per line, each once; with a tab and a number on every line or on none");
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> tokens)
    : Vocabulary(std::move(tokens), "the vocabulary") {}

Vocabulary::Vocabulary(std::vector<std::string> tokens, const std::string& source)
    : tokens_(std::move(tokens)) {
  constexpr size_t kMaxNamed = 5;
  std::vector<std::string> problems;
  size_t twice = 0;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (ids_.emplace(tokens_[id], static_cast<int64_t>(id)).second) continue;
    if (++twice <= kMaxNamed)
      problems.push_back(format("'{}' occurs twice", printable(tokens_[id], kMaxShown)));
  }
  if (twice > kMaxNamed) problems.push_back(format("{} more occur twice", twice - kMaxNamed));
  for (const auto& [name, id] : {std::pair("[PAD]", &pad_), std::pair("[CLS]", &start_),
                                 std::pair("[SEP]", &separator_), std::pair("[MASK]", &mask_)}) {
    const auto found = find(name);
    if (!found) problems.push_back(format("{} is not in it", name));
    *id = found.value_or(0);
  }
  if (!problems.empty()) {
    throw UsageError::all("vocabulary", format("{} cannot be used", source), problems,
                          "take the vocabulary of a BERT, or make one with fleet tokenize");
  }
}

Vocabulary Vocabulary::load(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) {
    throw UsageError("vocabulary", format("cannot read {}", path.string()),
                     "check the path and its permissions");
  }
  std::vector<std::string> tokens;
  std::optional<bool> numbered;
  std::vector<std::pair<size_t, std::string>> placed;
  std::string line;
  size_t number = 0;
  while (std::getline(in, line)) {
    ++number;
    if (line.find('\0') != line.npos) refuse(path, number, "a NUL byte, so this is no text");
    if (line.ends_with('\r')) line.pop_back();
    const size_t tab = line.find('\t');
    if (numbered.value_or(tab != line.npos) != (tab != line.npos))
      refuse(path, number, "a tab and a number on some lines only");
    numbered = tab != line.npos;
    size_t id = number - 1;
    if (*numbered) {
      const auto [end, error] =
          std::from_chars(line.data() + tab + 1, line.data() + line.size(), id);
      if (error != std::errc{} || end != line.data() + line.size())
        refuse(path, number,
               format("'{}' is no number", printable(line.substr(tab + 1), kMaxShown)));
      line.resize(tab);
    }
    if (line.empty()) refuse(path, number, "no token");
    if (line.ends_with('\r'))  // which would be lost when it is saved and loaded again
      refuse(path, number, "a token that ends in a carriage return");
    placed.emplace_back(id, line);
  }
  tokens.resize(placed.size());
  for (size_t i = 0; i < placed.size(); ++i) {
    auto& [id, token] = placed[i];
    if (id >= tokens.size())
      refuse(path, i + 1, format("number {} of a vocabulary of {} tokens", id, tokens.size()));
    if (!tokens[id].empty()) refuse(path, i + 1, format("number {} occurs twice", id));
    tokens[id] = std::move(token);
  }
  return Vocabulary(std::move(tokens), path.string());
}

void Vocabulary::save(const std::filesystem::path& path) const {
  std::string text;
  for (const auto& token : tokens_) text.append(token) += '\n';
  write_file_atomically(path, text, "vocabulary");
}

std::optional<int64_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

bool Vocabulary::is_special(int64_t id) const {
  return id == pad_ || id == start_ || id == separator_ || id == mask_ || unknown() == id;
}

}  // namespace fleet
