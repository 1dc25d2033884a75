// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/batch_norm2d.h"

#include <ATen/Context.h>
#include <ATen/ops/any.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

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
  auto y =
      torch::batch_norm(x, weight, bias, running_mean_, running_var_, is_training(),
                        /*momentum=*/0.1, /*eps=*/1e-5, at::globalContext().userEnabledCuDNN());
  if (is_training() && x.numel() == x.size(1) && !x.is_meta()) check_variance(x);
  return y;
}

// Of one value per channel: other ranks may have brought more (sync_batch_norm), so only what came
// out of it tells. The running variance would make every evaluation NaN, in silence.
void BatchNorm2dImpl::check_variance(const torch::Tensor& x) const {
  if (!running_var_.isnan().any().item<bool>()) return;
  throw Error("batch_norm",
              format("one value per channel has no variance: the batch is {}", c10::str(x.sizes())),
              "use larger images, or a batch size that leaves more than one sample for every "
              "micro-batch and for the last batch of an epoch");
}

}  // namespace fleet::ops
