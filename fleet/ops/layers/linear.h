// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace fleet::ops {

/// Initial values and device of a linear layer.
struct LinearOptions {
  bool bias = true;   // starts at zero
  double std = 0.02;  // the weights start from a normal distribution of this width; 0: from zero
  torch::Device device = torch::kCPU;
};

/// x W^T + b, named as LibTorch's own. Unlike that one it is made where it is wanted, on the meta
/// device too, and filled once.
///
///   Linear dense(1024, 4096, LinearOptions{.device = torch::kMeta});
///   auto y = dense(x);
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out, const LinearOptions& options = {});
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;  // out x in
  torch::Tensor bias;    // undefined without one
};
TORCH_MODULE(Linear);

/// x in the type in which autocast runs products, where it does: what several linear layers read is
/// cast and kept for backward once, not by each of them.
///
///   const auto shared = cast_for_products(x);
///   const auto q = query(shared), k = key(shared);
torch::Tensor cast_for_products(const torch::Tensor& x);

}  // namespace fleet::ops
