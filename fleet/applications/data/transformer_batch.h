// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/types.h>

namespace fleet {

/// Pairs of sequences, for a Transformer. N samples; tokens are int64, masks of any type with 0 for
/// padding, which stands at the end.
struct TransformerBatch {
  torch::Tensor source;       // N x S
  torch::Tensor source_mask;  // N x S; undefined: no padding
  torch::Tensor target;       // N x (T + 1): a start token, then the T that are to be predicted
  torch::Tensor target_mask;  // N x T, of what is to be predicted; undefined: no padding

  /// Of rows that are filled up with `pad`, as ParallelText and synthetic_translation give them.
  static TransformerBatch padded(const torch::Tensor& source, const torch::Tensor& target,
                                 int64_t pad = 0);

  int64_t size() const { return source.defined() ? source.size(0) : 0; }
  /// That are to be predicted, without padding; reads the mask.
  int64_t target_tokens() const;

  /// Samples [begin, end). On the meta device, which has no masks to look at, no target counts as
  /// padded.
  TransformerBatch slice(int64_t begin, int64_t end) const;

  TransformerBatch to(torch::Device device) const;
};

}  // namespace fleet
