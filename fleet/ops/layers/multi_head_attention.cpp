// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/multi_head_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include "fleet/ops/packed_linear.h"

namespace fleet::ops {

MultiHeadAttentionImpl::MultiHeadAttentionImpl(int64_t width, const AttentionOptions& options,
                                               torch::Device device)
    : options_(options) {
  in_proj_weight_ = register_parameter("in_proj_weight", torch::empty({3 * width, width}, device));
  in_proj_bias_ = register_parameter("in_proj_bias", torch::zeros({3 * width}, device));
  out_proj_ =
      register_module("out_proj", Linear(width, width, LinearOptions{.std = 0, .device = device}));
  torch::nn::init::xavier_uniform_(in_proj_weight_);
  torch::nn::init::xavier_uniform_(out_proj_->weight);
}

torch::Tensor MultiHeadAttentionImpl::forward(const torch::Tensor& x, const torch::Tensor& memory,
                                              const AttentionMask& mask) {
  const int64_t width = x.size(-1);
  std::vector<torch::Tensor> qkv;
  if (x.is_same(memory)) {
    qkv = packed_linear(x, in_proj_weight_, in_proj_bias_).chunk(3, -1);
  } else {
    const auto weights = in_proj_weight_.split_with_sizes({width, 2 * width});
    const auto biases = in_proj_bias_.split_with_sizes({width, 2 * width});
    const auto kv = packed_linear(memory, weights[1], biases[1]).chunk(2, -1);
    qkv = {packed_linear(x, weights[0], biases[0]), kv[0], kv[1]};
  }
  return out_proj_(attention(qkv[0], qkv[1], qkv[2], mask, options_, is_training()));
}

}  // namespace fleet::ops
