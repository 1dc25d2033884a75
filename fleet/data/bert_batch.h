#pragma once

#include <cstdint>

#include <torch/types.h>

namespace fleet {

/// Sentence pairs with some of their tokens masked, for BERT. N samples of S tokens; int64.
///
/// A slice remembers how many masked tokens a sample of the whole batch has, so that the mean
/// losses of parts, weighted by their samples, add up to the loss of the whole, however the masked
/// tokens are spread.
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
  double masked_per_sample = 0;        // of the whole batch; 0: this is the whole batch

  int64_t size() const { return token_ids.defined() ? token_ids.size(0) : 0; }

  /// Samples [begin, end), with positions counted from the new first one. On the meta device, which
  /// has no positions to look at, each sample counts as having as many as the others.
  BertBatch slice(int64_t begin, int64_t end) const;

  BertBatch to(torch::Device device) const;
};

}  // namespace fleet
