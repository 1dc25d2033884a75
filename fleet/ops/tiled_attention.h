// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <torch/types.h>

#include "fleet/ops/random_scope.h"

namespace fleet::ops {

/// What a query may look at, and the dropout of the weights.
struct TiledAttentionOptions {
  torch::Tensor keys = {};           // N x S_k, bool: false keys are left out, and cost nothing
  torch::Tensor bias = {};           // added to the scores; broadcasts to N x heads x S_q x S_k
  bool causal = false;               // query i sees the keys up to i
  double dropout = 0;                // always: give 0 outside of training
  std::optional<double> scale = {};  // unset: 1 / sqrt(d)
  std::optional<RandomCounter> counter = {};  // unset: the next of the forward
};

/// dropout(softmax(scale q k^T + bias)) v, tile by tile: scores and masks exist for 64 queries and
/// 64 keys at a time, forward and backward. Kept for backward: the arguments, the result and one
/// number per query and head.
///
/// q is N x S_q x heads x d, k and v are N x S_k x kv_heads x d, where heads is a multiple of
/// kv_heads; so is the result. They may be views of one projection. Sums are float, whatever the
/// type; of double tensors, or on other devices, it is LibTorch's ops that compute it. A query
/// whose bias is minus infinity for all keys gets zeros, as with LibTorch's attention; one of a
/// sample without `keys` an arbitrary mean of values.
///
///   auto context = tiled_attention(q, k, v, {.causal = true, .dropout = 0.1});
torch::Tensor tiled_attention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, const TiledAttentionOptions& options = {});

}  // namespace fleet::ops
