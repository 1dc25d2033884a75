// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fleet/core/options/options.h"
#include "fleet/data/shard.h"
#include "fleet/data/text/bert_batch.h"
#include "fleet/data/text/text_samples.h"
#include "fleet/data/text/vocabulary.h"

namespace fleet {

template <typename T>
class Prefetcher;

/// Which samples are read, and how they form batches.
struct MaskedTextOptions {
  std::filesystem::path data_dir;  ///< a folder of token files, or one file (text_samples.h)
  std::string list = {};  ///< a file in data_dir that names those to read ("train.txt"); unset: all
  std::filesystem::path vocab_path;  ///< a token per line (vocabulary.h)
  int64_t max_seq_len = 128;         ///< in tokens; longer samples are left out with a warning
  int64_t batch_size = 16;           ///< samples per update on one rank
  bool in_tokens = false;            ///< batch_size counts tokens, padding among them
  int64_t seed = 0;
  bool shuffle = true;  ///< and samples of similar length together; off: in the order of the files
  double masked_ratio = 0.15;
  std::optional<int64_t> rank = {};        ///< unset, with world_size: of fleet::init (shard.h)
  std::optional<int64_t> world_size = {};  ///< 1 alone: every rank takes all samples
  int64_t prefetch = 2;                    ///< batches loaded ahead in a background thread; 0: none
};

/// A position between two updates, with the data and batch it is valid for; part of a snapshot.
/// Equal on all ranks.
struct MaskedTextState {
  int64_t seed = 0;
  int64_t epoch = 0;
  int64_t next_update = 0;
  int64_t samples = 0;
  int64_t fingerprint = 0;   ///< of the samples
  int64_t global_batch = 0;  ///< batch_size x world_size
  int64_t world_size =
      1;  ///< matters for batches in tokens only: each rank's batch holds complete samples
  int64_t max_seq_len = 0;
  bool in_tokens = false;
  bool shuffle = true;

  bool operator==(const MaskedTextState&) const = default;
};
const FieldList& fields_of(const MaskedTextState*);

/// BERT's pretraining data: sentence pairs, masked anew in every epoch.
///
/// A sample depends on (seed, epoch, its number) alone: 15 % of its words are masked, 8
/// of 10 of them as [MASK], one as another word, one as itself (arXiv 1810.04805). Where the files
/// hold only pairs that follow, half of the samples get the second sentence of another one; pairs
/// and masks that the files bring along stay as they are. Files of single sentences give no
/// `next_sentence_labels`.
///
/// Every sample is used once per epoch over all ranks. An update takes samples of similar length,
/// and the ranks split it in place: without `in_tokens`, N ranks see the batches of one rank with N
/// times the batch size. All ranks make the same number of updates; in the last of an epoch a rank
/// may get a batch of size 0.
///
/// A loop iterates over the rest of the current epoch; its batches are prefetched by a background
/// thread. It may be left early: prefetched batches that were not used are yielded again.
///
///   auto data = fleet::load_digital_dataset_from_file(
///       {.data_dir = "train_data", .vocab_path = "vocab.txt", .max_seq_len = 512, .batch_size =
///       8});
///   for (int64_t epoch = 0; epoch < 3; ++epoch)
///     for (const fleet::BertBatch& batch : data) train_on(batch);
class MaskedText {
 public:
  class Iterator;

  MaskedText(TextSamples samples, Vocabulary vocabulary, const MaskedTextOptions& options);

  int64_t size() const { return samples_->size(); }
  int64_t epoch() const { return epoch_; }
  /// The same on every rank; differs between epochs when batches are counted in tokens.
  int64_t updates_in(int64_t epoch) const;

  /// This rank's batch of the next update, made in this thread; continues into the next epoch.
  BertBatch next();

  /// The data must outlive the iterator.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// The position after the last yielded batch.
  MaskedTextState state() const;
  /// Resumes with the next sample; refuses a position in other data or of another global
  /// batch, in which "the next sample" would mean another one.
  void restore(const MaskedTextState& state);

  const Vocabulary& vocabulary() const { return *vocabulary_; }

  /// How often each token occurs where one may be masked: int64, one count per token
  /// of the vocabulary.
  torch::Tensor token_counts() const;

 private:
  struct Plan {
    int64_t epoch = -1;
    std::vector<int64_t> order;                        // of the samples
    std::vector<std::pair<int64_t, int64_t>> updates;  // [begin, end) in `order`
  };

  std::pair<int64_t, bool> second_of(int64_t index, int64_t epoch) const;
  int64_t length_of(int64_t index, int64_t epoch) const;
  Plan make_plan(int64_t epoch) const;
  const Plan& plan(int64_t epoch) const;
  void advance();
  BertBatch make_batch(const int64_t* begin, const int64_t* end, int64_t epoch) const;

  std::shared_ptr<const TextSamples> samples_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  MaskedTextOptions options_;
  Shard shard_;
  std::vector<int64_t> with_second_;  // samples that can lend their second sentence; may be none
  bool pairs_ = false;                // some sample has a second sentence
  std::vector<int32_t> words_;        // tokens that may replace another
  int64_t epoch_ = 0;
  int64_t next_update_ = 0;
  mutable Plan plan_;  // of the epoch that was asked for last
};

/// Reads the batches of one epoch, once.
class MaskedText::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = BertBatch;
  using difference_type = std::ptrdiff_t;

  explicit Iterator(MaskedText* data);
  const BertBatch& operator*() const { return *current_; }
  const BertBatch* operator->() const { return &*current_; }
  Iterator& operator++();
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return !current_; }

 private:
  MaskedText* data_;
  int64_t epoch_;
  std::shared_ptr<Prefetcher<BertBatch>> batches_;
  std::optional<BertBatch> current_;
};

inline MaskedText::Iterator MaskedText::begin() { return Iterator(this); }

MaskedText load_digital_dataset_from_file(const MaskedTextOptions& options);

}  // namespace fleet
