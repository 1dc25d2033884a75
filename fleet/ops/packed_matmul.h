// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::ops {

/// Whether `packed_matmul` runs Fleet's own products: of two float tensors of 3 or 4 dimensions on
/// the CPU outside of autocast, with the same leading sizes, as many as threads at least, and large
/// enough, where they were measured to be faster than LibTorch's.
bool has_packed_matmul(const torch::Tensor& a, const torch::Tensor& b);

/// a b for each of many pairs of matrices, such as the heads of an attention: LibTorch's matmul,
/// with products of Fleet's own forward and backward where those are faster. Gradients of gradients
/// go through LibTorch's products.
///
///   scores = packed_matmul(q, k.transpose(-2, -1));   // N x heads x S x S
torch::Tensor packed_matmul(const torch::Tensor& a, const torch::Tensor& b);

}  // namespace fleet::ops
