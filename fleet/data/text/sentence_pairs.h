// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/data/split_mix.h"
#include "fleet/data/text/vocabulary.h"

namespace fleet {

/// Splits prose into sentences: after '.', '!' or '?' with closing quotes or brackets, before a
/// space; after their Chinese forms; at a blank line. "Mr. Pim" makes two, which does no
/// harm here.
///
///   SentenceSplitter splitter([&](std::string_view sentence) { use(sentence); });
///   while (std::getline(text, line)) splitter.add_line(line);
///   splitter.finish();
class SentenceSplitter {
 public:
  explicit SentenceSplitter(std::function<void(std::string_view)> take);
  void add_line(std::string_view line);
  void finish();

 private:
  std::function<void(std::string_view)> take_;
  std::string text_;  // the sentence that has not ended yet
};

/// Fills samples for BERT with sentences of a document, in order and without loss: as many as go
/// into `max_seq_len` tokens, cut in two between sentences at a position drawn from the seed.
///
/// A sentence longer than half a sample is cut. At the end of a document a single token may remain,
/// and makes a sample without a second sentence.
///
///   SentencePairs pairs({.max_seq_len = 128}, [&](auto first, auto second) {
///     file.write(first, second);
///   });
///   for (const auto& sentence : sentences) pairs.add(tokenizer.encode(sentence));
///   pairs.end_document();
class SentencePairs {
 public:
  struct Options {
    int64_t max_seq_len = 128;  ///< with [CLS] and twice [SEP]
    int64_t seed = 0;
  };
  using Tokens = std::span<const int64_t>;

  /// `take` gets both sentences without special tokens.
  SentencePairs(const Options& options, std::function<void(Tokens first, Tokens second)> take);

  void add(Tokens sentence);
  void end_document();

 private:
  int64_t room_;  // for words
  SplitMix64 random_;
  std::function<void(Tokens, Tokens)> take_;
  std::vector<int64_t> tokens_;
  std::vector<size_t> cuts_;  // where sentences end in `tokens_`
};

}  // namespace fleet
