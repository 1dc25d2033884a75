// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fleet/applications/bert.h"
#include "fleet/applications/resnet.h"
#include "fleet/applications/transformer.h"
#include "fleet/applications/vgg.h"

namespace fleet::applications {

// Data that can be learned, for runs without a download. A batch follows from its arguments alone;
// another seed gives other samples of the same task. Batches are made on the device of the options;
// on the meta device they have shapes only.
//
//   for (int64_t step = 0; step < 100; ++step)
//     optimizer.minimize(synthetic_batch(model.options(), 32, step),
//                        [&](const auto& micro_batch) { return model.loss(micro_batch); });

/// Each class is a coarse pattern of colours under noise.
Batch synthetic_batch(const ResnetOptions& options, int64_t batch_size, int64_t seed,
                      int64_t image_size = 224);
Batch synthetic_batch(const VggOptions& options, int64_t batch_size, int64_t seed,
                      int64_t image_size = 224);

/// Sentences go round one of many short circles of words, so that a masked word follows from its
/// neighbours and its place; a second sentence that follows stays in the circle of the first.
/// Tokens 0 to 3 are padding, start, separator and mask. 15 % of the words are masked, as in the
/// paper.
BertBatch synthetic_batch(const BertOptions& options, int64_t batch_size, int64_t seed,
                          int64_t length = 128);

/// The target is the source in reverse. Tokens 0 to 2 are padding, start and end; sources have
/// between half of `length` and all of it, and end with the end token.
TransformerBatch synthetic_batch(const TransformerOptions& options, int64_t batch_size,
                                 int64_t seed, int64_t length = 32);

}  // namespace fleet::applications
