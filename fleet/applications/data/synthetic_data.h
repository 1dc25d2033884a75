// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "fleet/data/dataset.h"
#include "fleet/data/text/masked_text.h"

namespace fleet::applications {

// The tasks of `synthetic_batch` as data sets, which loaders shuffle and shard over the ranks.
// Sample n of a task is always the same; those to test with are others of the same task.
//
//   DataLoader train(synthetic_images(10, 64, {.count = 1000}), {.batch_size = 32});
//   DataLoader test(synthetic_images(10, 64, {.first = 1000, .count = 200}), {.batch_size = 50});

/// What a flag may ask for: more would be made for hours before the first update.
inline constexpr int64_t kMaxSyntheticSamples = int64_t{1} << 24;

/// Samples [first, first + count) of a task.
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;
};

/// `data`: N x 3 x size x size, `target`: N.
std::shared_ptr<const Dataset> synthetic_images(int64_t classes, int64_t image_size,
                                                const SampleRange& range);

/// `data`: N x length, `target`: N x (length + 1), filled up with 0: what TransformerBatch::padded
/// takes.
std::shared_ptr<const Dataset> synthetic_translation(int64_t vocab, int64_t length,
                                                     const SampleRange& range);

/// Sentence pairs of at most `options.max_seq_len` tokens, masked anew in every epoch as those of
/// files are. `data_dir`, `list` and `vocab_path` do not count: tokens 0 to 3 are [PAD], [CLS],
/// [SEP] and [MASK], the others are words.
MaskedText synthetic_text(int64_t vocab, const SampleRange& range,
                          const MaskedTextOptions& options);

}  // namespace fleet::applications
