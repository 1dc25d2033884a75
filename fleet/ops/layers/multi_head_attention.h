// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "fleet/ops/layers/attention.h"
#include "fleet/ops/layers/linear.h"

namespace fleet::ops {

/// Projections around `attention`, with the parameters of torch.nn.MultiheadAttention: one matrix
/// makes queries, keys and values, so that self-attention takes one product. Weights start from
/// Xavier's uniform distribution, biases from zero.
///
///   MultiHeadAttention self(512, AttentionOptions{.heads = 8});
///   x = self(x, x, mask);         // self-attention
///   x = cross(x, memory, mask);   // keys and values from another sequence
class MultiHeadAttentionImpl : public torch::nn::Module {
 public:
  MultiHeadAttentionImpl(int64_t width, const AttentionOptions& options,
                         torch::Device device = torch::kCPU);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& memory,
                        const AttentionMask& mask);

 private:
  AttentionOptions options_;
  torch::Tensor in_proj_weight_;
  torch::Tensor in_proj_bias_;
  Linear out_proj_{nullptr};
};
TORCH_MODULE(MultiHeadAttention);

}  // namespace fleet::ops
