// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <torch/types.h>

#include "fleet/ops/random_scope.h"

namespace fleet::ops {

struct BiasGeluOptions {
  double dropout = 0;                         // behind it, always: give 0 outside of training
  bool tanh = false;                          // the approximation by tanh instead of erf
  std::optional<RandomCounter> counter = {};  // unset: the next of the forward
};

/// dropout(gelu(x + bias)) in one pass, with the bias along the last dimension, or undefined
/// (Hendrycks and Gimpel, arXiv 1606.08415). Backward keeps x alone: value, slope and mask are
/// computed again, and the bias's gradient is summed up in the same pass.
///
///   wide = bias_gelu(torch::linear(x, up->weight), up->bias);
torch::Tensor bias_gelu(const torch::Tensor& x, const torch::Tensor& bias,
                        const BiasGeluOptions& options = {});

}  // namespace fleet::ops
