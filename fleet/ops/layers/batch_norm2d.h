// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace fleet::ops {

/// Ioffe and Szegedy, arXiv 1502.03167, with LibTorch's momentum (0.1), epsilon (1e-5) and names.
/// In training, one value per channel over all that share statistics is an Error, as in LibTorch's.
class BatchNorm2dImpl : public torch::nn::Module {
 public:
  explicit BatchNorm2dImpl(int64_t channels, torch::Device device = torch::kCPU);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;
  torch::Tensor bias;

 private:
  void check_variance(const torch::Tensor& x) const;

  torch::Tensor running_mean_;
  torch::Tensor running_var_;
  torch::Tensor num_batches_tracked_;
};
TORCH_MODULE(BatchNorm2d);

}  // namespace fleet::ops
