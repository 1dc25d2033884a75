// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::ops {

/// How attention is computed; the result is the same.
enum class AttentionPath {
  kAuto,   // kTiled on the CPU, else kFused
  kTiled,  // Fleet's own, which never holds all scores (tiled_attention.h)
  kPlain,  // two products with a softmax between
  kFused,  // LibTorch's scaled_dot_product_attention, whose dropout draws from LibTorch's generator
};

/// Shape and dropout of an attention, and how it is computed.
struct AttentionOptions {
  int64_t heads = 1;
  double dropout = 0;  // of the softmax's weights, when training
  AttentionPath path = AttentionPath::kAuto;
};

/// Which keys a query may look at: all of them, unless it was made otherwise. One serves all
/// layers.
struct AttentionMask {
  torch::Tensor keys;   // N x S_k, true: may be looked at; undefined: all
  bool causal = false;  // query i sees the keys up to i
  torch::Tensor bias;   // both as numbers to add to the scores, 0 or so low that nothing is left

  /// `keys`: N x S_k of any type, 0 for padding. Undefined: an empty mask.
  static AttentionMask padding(const torch::Tensor& keys);
  /// For as many queries as keys.
  static AttentionMask causal_of(int64_t length, torch::Device device);
  static AttentionMask causal_padding(const torch::Tensor& keys);
};

/// softmax(q k^T / sqrt(d)) v in each of the heads (Vaswani et al., arXiv 1706.03762).
///
/// q is N x S_q x (heads d), k and v are N x S_k x (heads d), as projections leave them; so is the
/// result. A query that may look at no key at all gets the mean of the values, or NaN in half
/// precision: give each sample one token at least.
///
///   const auto mask = AttentionMask::padding(batch.attention_mask);
///   auto context = attention(query(x), key(x), value(x), mask, {.heads = 16}, is_training());
torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const AttentionMask& mask, const AttentionOptions& options, bool training);

}  // namespace fleet::ops
