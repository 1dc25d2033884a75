// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

namespace fleet::ops {

struct BatchNormReluOptions {
  bool training = true;
  double momentum = 0.1;  // of the running statistics, as LibTorch counts it
  double eps = 1e-5;
  bool relu = true;
};

/// Parameters and running statistics of a batch norm, each of as many elements as channels. The
/// statistics may be undefined in training.
struct BatchNormTensors {
  torch::Tensor weight;
  torch::Tensor bias;
  torch::Tensor running_mean;
  torch::Tensor running_var;
};

/// relu(batch_norm(x) + residual) of N x C x H x W, in channels-last order (others are copied to
/// it); `residual` may be undefined. Kept for backward are x and the residual: no result and no
/// mask, for the ReLU's sign is computed again. Float has kernels; other types go through
/// LibTorch's ops, and so does training under sync_batch_norm, which takes the statistics over all
/// ranks.
///
///   y = batch_norm_relu(conv(x), shortcut, {norm->weight, norm->bias, mean, var});
torch::Tensor batch_norm_relu(const torch::Tensor& x, const torch::Tensor& residual,
                              const BatchNormTensors& norm,
                              const BatchNormReluOptions& options = {});

}  // namespace fleet::ops
