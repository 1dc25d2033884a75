// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/feed_forward.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>

namespace fleet::ops {

torch::Tensor feed_forward(const torch::Tensor& x, Linear& up, Linear& down,
                           const FeedForwardOptions& options) {
  auto wide = up(x);
  wide = options.activation == Activation::kGelu ? torch::gelu(wide) : wide.relu_();
  if (options.dropout > 0 && down->is_training()) {
    wide = torch::dropout(wide, options.dropout, /*train=*/true);
  }
  return down(wide);
}

}  // namespace fleet::ops
