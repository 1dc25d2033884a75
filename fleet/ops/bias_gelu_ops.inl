// SPDX-License-Identifier: Apache-2.0
#pragma once

// No public header: the dispatcher's ops of bias_gelu, which gelu_linear calls too.

#include "fleet/ops/fused_op.inl"

namespace fleet::ops {

inline const auto& bias_gelu_op() {
  using Op = torch::Tensor(const torch::Tensor&, const std::optional<torch::Tensor>&, double,
                           c10::IntArrayRef, bool);
  static const auto op = fleet_op<Op>("bias_gelu");
  return op;
}

/// Of x, of the bias, and, with its last argument, what the forward returned.
inline const auto& bias_gelu_backward_op() {
  using Op = std::tuple<torch::Tensor, torch::Tensor, torch::Tensor>(
      const torch::Tensor&, const torch::Tensor&, const std::optional<torch::Tensor>&, double,
      c10::IntArrayRef, bool, bool);
  static const auto op = fleet_op<Op>("bias_gelu_backward");
  return op;
}

}  // namespace fleet::ops
