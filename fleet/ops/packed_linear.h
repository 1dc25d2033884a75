// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::ops {

/// Whether `packed_linear` runs Fleet's own products: of float on the CPU outside of autocast,
/// large enough, where they were measured to be faster than LibTorch's.
bool has_packed_linear(const torch::Tensor& x, const torch::Tensor& weight,
                       const torch::Tensor& bias = {});

/// x W^T + bias: LibTorch's linear, with products of Fleet's own forward and backward where those
/// are faster. Gradients of gradients go through LibTorch's products.
///
///   y = packed_linear(x, dense->weight, dense->bias);
torch::Tensor packed_linear(const torch::Tensor& x, const torch::Tensor& weight,
                            const torch::Tensor& bias = {});

}  // namespace fleet::ops
