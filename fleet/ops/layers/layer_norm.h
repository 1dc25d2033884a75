// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace fleet::ops {

/// Epsilon and device of a layer norm.
struct LayerNormOptions {
  double eps = 1e-5;
  torch::Device device = torch::kCPU;
};

/// Ba et al., arXiv 1607.06450, over the last dimension.
class LayerNormImpl : public torch::nn::Module {
 public:
  explicit LayerNormImpl(int64_t width, const LayerNormOptions& options = {});
  torch::Tensor forward(const torch::Tensor& x);

  double eps() const { return eps_; }

  torch::Tensor weight;
  torch::Tensor bias;

 private:
  double eps_;
};
TORCH_MODULE(LayerNorm);

/// norm(residual + dropout(x)), the end of every block of a post-norm transformer, in one pass
/// (add_norm.h). The dropout acts while `norm` is in training mode.
///
///   x = add_norm(dense(context), x, norm, 0.1);
torch::Tensor add_norm(const torch::Tensor& x, const torch::Tensor& residual, LayerNorm& norm,
                       double dropout);

}  // namespace fleet::ops
