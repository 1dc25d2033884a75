// SPDX-License-Identifier: Apache-2.0
#pragma once

// No public header. Products of matrices that LibTorch or Fleet computes, whichever is faster here.

#include <vector>

#include <torch/types.h>

namespace fleet::ops {

/// Who computes products of float matrices on the CPU.
enum class ProductSource {
  kMeasured,  // Fleet, where its kernel is at least 1.2 times as fast as LibTorch's library
  kFleet,     // Fleet, if it has a kernel for this CPU
  kLibTorch,
};

/// Of this process, for tests and measurements; at the start kMeasured. Whoever measures does so at
/// the first product, in some 20 ms. Results of the two differ by rounding; FLEET_CPU=avx2 leaves
/// all products to LibTorch.
void set_product_source(ProductSource source);

/// How many times as fast as LibTorch's library Fleet's kernel is, as measured at the first call; 0
/// where it has none for this CPU.
double product_speedup();

/// Whether it is a float tensor as the kernels read it: no subclass, wrapper or forward-mode
/// differentiation. On the CPU, or on meta, where ops are chosen as here on the CPU so that plans
/// made there are of the same ops.
bool is_plain_float(const torch::Tensor& x);

/// Whether Fleet computes x W^T for rows x `depth` and `columns` x `depth`, of float.
bool has_product(const torch::Tensor& x, const torch::Tensor& weight);

/// a b (+ bias, one for each column).
torch::Tensor product(const torch::Tensor& a, const torch::Tensor& b,
                      const torch::Tensor& bias = {});

/// c = a b, or c += a b; the rows of c are contiguous.
void product_into(const torch::Tensor& c, const torch::Tensor& a, const torch::Tensor& b,
                  bool adds = false);

/// Whether Fleet computes a b for two tensors of 3 or 4 dimensions with the same leading sizes.
bool has_batched_product(const torch::Tensor& a, const torch::Tensor& b);
/// a b for each pair of matrices; LibTorch's matmul where Fleet has no product.
torch::Tensor batched_product(const torch::Tensor& a, const torch::Tensor& b);

/// x W^T + bias for an x of any dimensions, past autograd.
torch::Tensor linear_product(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias);

/// The FLOPs of an op (OpProperties::flops) whose result's elements are each a sum over the last
/// dimension of its first argument.
double product_flops(const std::vector<torch::Tensor>& arguments, double result);

}  // namespace fleet::ops
