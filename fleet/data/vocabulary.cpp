#include "fleet/data/vocabulary.h"

#include <charconv>
#include <cstdio>
#include <fstream>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, size_t line, const std::string& what) {
  throw Error("vocabulary", format("{}:{}: {}", path.string(), line, what),
              "one token per line, each once; with a number behind a tab on every line or on none");
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> tokens)
    : Vocabulary(std::move(tokens), "the vocabulary") {}

Vocabulary::Vocabulary(std::vector<std::string> tokens, const std::string& source)
    : tokens_(std::move(tokens)) {
  std::vector<std::string> problems;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!ids_.emplace(tokens_[id], static_cast<int64_t>(id)).second)
      problems.push_back(format("'{}' comes twice", tokens_[id]));
  }
  for (const auto& [name, id] : {std::pair("[PAD]", &pad_), std::pair("[CLS]", &start_),
                                 std::pair("[SEP]", &separator_), std::pair("[MASK]", &mask_)}) {
    const auto found = find(name);
    if (!found) problems.push_back(format("{} is not in it", name));
    *id = found.value_or(0);
  }
  if (!problems.empty()) {
    throw Error::all("vocabulary", format("{} cannot be used", source), problems,
                     "take the vocabulary of a BERT, or make one with fleet tokenize");
  }
}

Vocabulary Vocabulary::load(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) {
    throw Error("vocabulary", format("cannot read {}", path.string()),
                "check the path and its permissions");
  }
  std::vector<std::string> tokens;
  std::optional<bool> numbered;
  std::vector<std::pair<size_t, std::string>> placed;
  std::string line;
  size_t number = 0;
  while (std::getline(in, line)) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    const size_t tab = line.find('\t');
    if (numbered.value_or(tab != line.npos) != (tab != line.npos))
      refuse(path, number, "a number behind a tab on some lines only");
    numbered = tab != line.npos;
    size_t id = number - 1;
    if (*numbered) {
      const auto [end, error] =
          std::from_chars(line.data() + tab + 1, line.data() + line.size(), id);
      if (error != std::errc{} || end != line.data() + line.size())
        refuse(path, number, format("'{}' is no number", line.substr(tab + 1)));
      line.resize(tab);
    }
    if (line.empty()) refuse(path, number, "no token");
    placed.emplace_back(id, line);
  }
  tokens.resize(placed.size());
  for (size_t i = 0; i < placed.size(); ++i) {
    auto& [id, token] = placed[i];
    if (id >= tokens.size())
      refuse(path, i + 1, format("number {} of a vocabulary of {} tokens", id, tokens.size()));
    if (!tokens[id].empty()) refuse(path, i + 1, format("number {} comes twice", id));
    tokens[id] = std::move(token);
  }
  return Vocabulary(std::move(tokens), path.string());
}

void Vocabulary::save(const std::filesystem::path& path) const {
  auto beside = path;
  beside += ".part";
  {
    std::ofstream out(beside, std::ios::binary);
    for (const auto& token : tokens_) out << token << '\n';
    if (!out.flush()) {
      std::remove(beside.c_str());
      throw Error("vocabulary", format("cannot write {}", path.string()),
                  "check the folder, its permissions and the room on its disk");
    }
  }
  std::filesystem::rename(beside, path);
}

std::optional<int64_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

bool Vocabulary::is_special(int64_t id) const {
  return id == pad_ || id == start_ || id == separator_ || id == mask_ || unknown() == id;
}

}  // namespace fleet
