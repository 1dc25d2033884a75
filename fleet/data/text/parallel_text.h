// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "fleet/data/dataset.h"
#include "fleet/data/text/vocabulary.h"
#include "fleet/data/text/word_piece.h"

namespace fleet {

/// Two files of text, plain or gzip, whose lines are translations of each other, as tokens of one
/// vocabulary.
///
/// A batch has `data`, the source, N x S: words and [SEP]; and `target`, N x (T + 1): [CLS], words
/// and [SEP]; both padded to their longest with [PAD]. Pairs with more than `max_length` tokens on
/// a side, [SEP] among them, are left out with a warning. An empty line on one side alone is an
/// Error which names it, as are files of unequal length.
///
///   const WordPiece tokenizer(Vocabulary::load("vocab.txt"));
///   auto pairs = std::make_shared<ParallelText>("train.src", "train.tgt", tokenizer, 64);
///   DataLoader loader(pairs, {.batch_size = 32});
class ParallelText : public Dataset {
 public:
  ParallelText(const std::filesystem::path& source, const std::filesystem::path& target,
               const WordPiece& tokenizer, int64_t max_length);

  int64_t size() const override { return static_cast<int64_t>(pairs_.size()); }
  Batch get(std::span<const int64_t> indices, int64_t epoch) const override;

  int64_t too_long() const { return too_long_; }

 private:
  struct Pair {
    std::vector<int32_t> source, target;
  };

  std::vector<Pair> pairs_;
  int64_t pad_;
  int64_t too_long_ = 0;
};

}  // namespace fleet
