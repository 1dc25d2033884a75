// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace fleet::ops {

/// Initial values and device of a table.
struct EmbeddingOptions {
  double std = 0.02;
  int64_t padding = -1;  // the row of this token starts at zero and is not trained; -1: none
  torch::Device device = torch::kCPU;
};

/// A row of the table for each token.
///
///   Embedding words(30522, 1024);
///   auto x = words(token_ids);   // N x S becomes N x S x 1024
class EmbeddingImpl : public torch::nn::Module {
 public:
  EmbeddingImpl(int64_t tokens, int64_t width, const EmbeddingOptions& options = {});
  torch::Tensor forward(const torch::Tensor& tokens);

  torch::Tensor weight;  // tokens x width

 private:
  int64_t padding_;
};
TORCH_MODULE(Embedding);

}  // namespace fleet::ops
