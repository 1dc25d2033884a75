// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "fleet/data/text/vocabulary.h"

namespace fleet {

/// One line of a file. The spans point into the TextSamples that gave it.
struct TextSample {
  std::span<const int32_t> tokens;  ///< [CLS] a a a [SEP] b b [SEP], without padding
  int64_t first_length = 0;  ///< tokens of the first sentence, its [CLS] and [SEP] among them
  bool follows = true;       ///< whether the second sentence follows the first
  std::span<const int32_t> masked_positions;  ///< of a line that is masked already
  std::span<const int32_t> masked_labels;

  bool has_second() const { return first_length < static_cast<int64_t>(tokens.size()); }
};

/// Token lines of Paddle's BERT programs, held in memory at 4 bytes a token.
///
/// Two formats, `;` between fields and one space between numbers:
///
///   token_ids;sent_ids;pos_ids;label         label 1: the second sentence follows, 0: it does not
///   src_ids;input_mask;sent_ids;masked_pos;masked_ids;masked_weight;label
///                                            masked already; 0: it follows, 1: it does not
///
/// Strict: a line that is neither, or was made with another vocabulary, is an Error which names
/// file and line. Lines longer than `max_seq_len` are left out, counted, with a warning.
///
///   auto samples = TextSamples::load("train_data", vocabulary, 128);
///   samples[0].tokens.size();
class TextSamples {
 public:
  /// A file, or a folder of which every file is read in the order of names but for hidden ones;
  /// names that end in ".gz" are inflated. With `list`, the folder's files that this file in it
  /// names, one per line, in that order: the guide's "train.txt" and "val.txt".
  static TextSamples load(const std::filesystem::path& path, const Vocabulary& vocabulary,
                          int64_t max_seq_len, const std::string& list = {});

  /// One more sample that is not masked yet, for those that no file holds. Nothing is checked.
  void add(const TextSample& sample);

  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  TextSample operator[](int64_t index) const;

  /// Lines have seven fields.
  bool is_masked() const { return fields_ == 7; }
  /// No line says that its second sentence does not follow.
  bool follow_always() const { return follow_always_; }
  int64_t too_long() const { return too_long_; }
  /// Changes with any token: so that a saved position is not applied to other data.
  int64_t fingerprint() const { return static_cast<int64_t>(fingerprint_); }

 private:
  class Reader;
  struct Line {
    int64_t begin = 0;   // in tokens_
    int64_t masked = 0;  // in masked_positions_ and masked_labels_
    int32_t length = 0;
    int32_t first_length = 0;
    int32_t masked_count = 0;
    bool follows = true;
  };

  /// Places of `line` in the vectors below are filled in.
  void append(Line line, std::span<const int32_t> tokens, std::span<const int32_t> positions,
              std::span<const int32_t> labels);
  void mix(uint64_t word) { fingerprint_ = (fingerprint_ ^ word) * 0x9E3779B97F4A7C15; }

  std::vector<Line> lines_;
  std::vector<int32_t> tokens_, masked_positions_, masked_labels_;
  int64_t fields_ = 0;
  int64_t too_long_ = 0;
  bool follow_always_ = true;
  uint64_t fingerprint_ = 0;
};

}  // namespace fleet
