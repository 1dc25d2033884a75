// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace fleet::ops {

/// Shape, memory format and device of a convolution.
struct Conv2dOptions {
  int64_t kernel = 3;
  int64_t stride = 1;
  bool bias = false;  // starts at zero
  bool channels_last = true;
  torch::Device device = torch::kCPU;
};

/// A convolution padded so that stride 1 keeps the size. Weights start as those of He et al., arXiv
/// 1502.01852, counted over the outputs: normal with variance 2 / (out k^2).
class Conv2dImpl : public torch::nn::Module {
 public:
  Conv2dImpl(int64_t in, int64_t out, const Conv2dOptions& options = {});
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;  // out x in x k x k
  torch::Tensor bias;    // undefined without one

 private:
  Conv2dOptions options_;
};
TORCH_MODULE(Conv2d);

}  // namespace fleet::ops
