// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/text/vocabulary_trainer.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/utf8.h"

namespace fleet {
namespace {

constexpr const char* kSpecial[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

using Pair = std::pair<int, int>;  // numbers of neighbouring pieces

struct Word {
  std::vector<int> pieces;
  int64_t count;
};

std::vector<std::string> code_points(const std::string& word) {
  std::vector<std::string> result;
  for (size_t at = 0; at < word.size(); at += utf8_length(word[at]))
    result.push_back(word.substr(at, utf8_length(word[at])));
  return result;
}

class Pieces {
 public:
  explicit Pieces(int64_t size) : most_(static_cast<size_t>(size)) {
    for (const char* token : kSpecial) add(token);
  }

  int add(const std::string& text) {
    const auto [found, is_new] = ids_.try_emplace(text, static_cast<int>(texts_.size()));
    if (is_new) texts_.push_back(text);
    return found->second;
  }
  int join(Pair pair) {
    const auto& right = texts_[static_cast<size_t>(pair.second)];
    return add(texts_[static_cast<size_t>(pair.first)] + right.substr(2));  // without its ##
  }
  bool full() const { return texts_.size() >= most_; }
  std::vector<std::string> take() { return std::move(texts_); }

 private:
  size_t most_;
  std::unordered_map<std::string, int> ids_;
  std::vector<std::string> texts_;
};

// How often each pair of neighbours occurs and in which words, kept up to date while pairs become
// one piece.
class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t i = 0; i < words_.size(); ++i) count(i, +1);
    for (const auto& [pair, known] : pairs_) queue_.push({known.count, pair});
    changed_.clear();
  }

  // The commonest pair, of equals the one whose pieces are older; count 0 when there is none.
  std::pair<int64_t, Pair> commonest() {
    while (!queue_.empty()) {
      const auto [stale, pair] = queue_.top();
      const auto found = pairs_.find(pair);
      const int64_t now = found == pairs_.end() ? 0 : found->second.count;
      if (now == stale && now > 0) return {now, pair};
      queue_.pop();
      if (now > 0) queue_.push({now, pair});
    }
    return {0, {}};
  }

  void join(Pair pair, int joined) {
    const auto places = std::move(pairs_.at(pair).words);
    for (const size_t i : places) {
      count(i, -1);
      auto& pieces = words_[i].pieces;
      size_t out = 0;
      for (size_t in = 0; in < pieces.size(); ++in) {
        const bool here =
            in + 1 < pieces.size() && pieces[in] == pair.first && pieces[in + 1] == pair.second;
        pieces[out++] = here ? joined : pieces[in];
        in += here ? 1 : 0;
      }
      pieces.resize(out);
      count(i, +1);
    }
    pairs_.erase(pair);
    changed_.erase(pair);
    for (const auto& other : changed_) {
      const auto found = pairs_.find(other);
      if (found != pairs_.end() && found->second.count > 0)
        queue_.push({found->second.count, other});
    }
    changed_.clear();
  }

 private:
  struct Known {
    int64_t count = 0;
    std::set<size_t> words;
  };
  struct Later {
    bool operator()(const std::pair<int64_t, Pair>& a, const std::pair<int64_t, Pair>& b) const {
      return std::tie(a.first, b.second) < std::tie(b.first, a.second);
    }
  };

  void count(size_t i, int sign) {
    const auto& [pieces, times] = words_[i];
    for (size_t p = 0; p + 1 < pieces.size(); ++p) {
      const Pair pair{pieces[p], pieces[p + 1]};
      auto& known = pairs_[pair];
      known.count += sign * times;
      if (sign > 0) known.words.insert(i);
      changed_.insert(pair);
    }
  }

  std::vector<Word> words_;
  std::map<Pair, Known> pairs_;
  std::priority_queue<std::pair<int64_t, Pair>, std::vector<std::pair<int64_t, Pair>>, Later>
      queue_;  // a pair may be there with counts that it no longer has
  std::set<Pair> changed_;
};

std::set<std::string> alphabet_of(const std::map<std::string, int64_t>& counts, size_t most) {
  std::map<std::string, int64_t> letters;
  for (const auto& [word, count] : counts) {
    for (const auto& letter : code_points(word)) letters[letter] += count;
  }
  std::vector<std::pair<std::string, int64_t>> order(letters.begin(), letters.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  order.resize(std::min(order.size(), most));
  std::set<std::string> kept;
  for (auto& [letter, count] : order) kept.insert(std::move(letter));
  return kept;
}

}  // namespace

VocabularyTrainer::VocabularyTrainer(const VocabularyTrainerOptions& options) : options_(options) {
  if (options.size < std::ssize(kSpecial) || options.min_count < 1 || options.max_alphabet < 1) {
    throw UsageError("vocabulary",
                     format("size {}, min_count {}, max_alphabet {}: nothing can be made of these",
                            options.size, options.min_count, options.max_alphabet),
                     format("size must be {} at least, the others 1", std::ssize(kSpecial)));
  }
}

void VocabularyTrainer::add(std::string_view text) {
  for (auto& word : split_words(text, options_.words)) ++counts_[std::move(word)];
}

Vocabulary VocabularyTrainer::train() const {
  if (counts_.empty()) {
    throw UsageError("vocabulary", "there are no words to make a vocabulary of",
                     "give files with text");
  }
  const std::map<std::string, int64_t> counts(counts_.begin(), counts_.end());
  const auto alphabet = alphabet_of(counts, static_cast<size_t>(options_.max_alphabet));
  Pieces pieces(options_.size);
  std::set<std::string> first, inner;
  std::vector<std::pair<std::vector<std::string>, int64_t>> split;
  for (const auto& [word, count] : counts) {
    auto letters = code_points(word);
    if (!std::all_of(letters.begin(), letters.end(),
                     [&](const auto& letter) { return alphabet.count(letter) > 0; })) {
      continue;
    }
    for (size_t i = 1; i < letters.size(); ++i) inner.insert(letters[i] = "##" + letters[i]);
    first.insert(letters.front());
    split.emplace_back(std::move(letters), count);
  }
  for (const auto* letters : {&first, &inner}) {
    for (const auto& letter : *letters) {
      if (!pieces.full()) pieces.add(letter);
    }
  }
  if (pieces.full()) return Vocabulary(pieces.take());
  std::vector<Word> words;
  for (const auto& [letters, count] : split) {
    words.push_back({{}, count});
    for (const auto& letter : letters) words.back().pieces.push_back(pieces.add(letter));
  }
  PairCounts pairs(std::move(words));
  while (!pieces.full()) {
    const auto [count, pair] = pairs.commonest();
    if (count < options_.min_count) break;
    pairs.join(pair, pieces.join(pair));
  }
  return Vocabulary(pieces.take());
}

}  // namespace fleet
