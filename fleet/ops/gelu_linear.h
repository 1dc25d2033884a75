// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "fleet/ops/bias_gelu.h"

namespace fleet::ops {

/// linear(dropout(gelu(x + bias)), weight, out_bias): the wide part of a transformer's block behind
/// its first product. Backward keeps x alone: the wide activation, as large as x, is computed again
/// in the pass that computes x's gradient. `bias` and `out_bias` may be undefined.
///
///   y = gelu_linear(torch::linear(x, up->weight), up->bias, down->weight, down->bias);
torch::Tensor gelu_linear(const torch::Tensor& x, const torch::Tensor& bias,
                          const torch::Tensor& weight, const torch::Tensor& out_bias,
                          const BiasGeluOptions& options = {});

}  // namespace fleet::ops
