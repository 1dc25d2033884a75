// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::ops {

/// silu(gate) * up (Shazeer, arXiv 2002.05202), where the halves of x's last dimension are gate and
/// up, as one projection leaves them. Kept for backward: x alone.
///
///   x = down(swiglu(gate_and_up(x)));   // N x S x 2 W becomes N x S x W
torch::Tensor swiglu(const torch::Tensor& x);

}  // namespace fleet::ops
