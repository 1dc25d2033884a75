// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::ops {

/// cos and sin of the angles of rotary position embeddings, each length x (width / 2).
struct RotaryTable {
  torch::Tensor cos;
  torch::Tensor sin;

  /// Angle of pair i at position p: p base^(-2 i / width).
  static RotaryTable of(int64_t length, int64_t width, double base = 10000,
                        torch::Device device = torch::kCPU);
};

/// Su et al., arXiv 2104.09864: turns each pair (x[i], x[i + d / 2]) of every head by the angle of
/// its position, as Llama does. x is N x S x heads x d, of even d. Backward keeps the table alone.
///
///   const auto table = RotaryTable::of(length, 64);
///   auto context = tiled_attention(rotary(q, table), rotary(k, table), v, {.causal = true});
torch::Tensor rotary(const torch::Tensor& x, const RotaryTable& table);

}  // namespace fleet::ops
