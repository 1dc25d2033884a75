#include "fleet/ops/batch_norm2d.h"

#include <ATen/Context.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace fleet::ops {

BatchNorm2dImpl::BatchNorm2dImpl(int64_t channels, torch::Device device) {
  weight = register_parameter("weight", torch::ones({channels}, device));
  bias = register_parameter("bias", torch::zeros({channels}, device));
  running_mean_ = register_buffer("running_mean", torch::zeros({channels}, device));
  running_var_ = register_buffer("running_var", torch::ones({channels}, device));
  num_batches_tracked_ = register_buffer(
      "num_batches_tracked", torch::zeros({}, torch::TensorOptions(device).dtype(torch::kLong)));
}

torch::Tensor BatchNorm2dImpl::forward(const torch::Tensor& x) {
  if (is_training()) num_batches_tracked_ += 1;
  return torch::batch_norm(x, weight, bias, running_mean_, running_var_, is_training(),
                           /*momentum=*/0.1, /*eps=*/1e-5, at::globalContext().userEnabledCuDNN());
}

}  // namespace fleet::ops
