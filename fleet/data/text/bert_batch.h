// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

namespace fleet {

/// Sentence pairs with some of their tokens masked, for BERT. N samples of S tokens; int64.
///
///   for (int64_t begin = 0; begin < batch.size(); begin += 8)
///     train_on(batch.slice(begin, std::min(begin + 8, batch.size())));
struct BertBatch {
  torch::Tensor token_ids;             // N x S
  torch::Tensor token_type_ids;        // N x S: 0 first sentence, 1 second; undefined: all 0
  torch::Tensor attention_mask;        // N x S, any type: 0 padding; undefined: no padding
  torch::Tensor masked_positions;      // M: sample * S + place, in any order
  torch::Tensor masked_labels;         // M: the token that was there
  torch::Tensor next_sentence_labels;  // N: 0 follows, 1 does not; undefined: no such loss

  int64_t size() const { return token_ids.defined() ? token_ids.size(0) : 0; }
  /// What the terms of BERT's loss are averaged over: masked tokens, and with labels for the next
  /// sentence samples.
  std::vector<double> loss_weights() const;

  /// Samples [begin, end), with positions counted from the new first one. On the meta device, which
  /// has no positions to look at, each sample counts as having as many as the others.
  BertBatch slice(int64_t begin, int64_t end) const;

  BertBatch to(torch::Device device) const;
};

}  // namespace fleet
