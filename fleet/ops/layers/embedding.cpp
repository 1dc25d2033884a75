// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>

namespace fleet::ops {

EmbeddingImpl::EmbeddingImpl(int64_t tokens, int64_t width, const EmbeddingOptions& options)
    : padding_(options.padding) {
  auto start = torch::empty({tokens, width}, options.device).normal_(0, options.std);
  if (padding_ >= 0) start.select(0, padding_).zero_();
  weight = register_parameter("weight", start);
}

torch::Tensor EmbeddingImpl::forward(const torch::Tensor& tokens) {
  return torch::embedding(weight, tokens, padding_);
}

}  // namespace fleet::ops
