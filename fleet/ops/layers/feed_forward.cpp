// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/feed_forward.h"

#include <ATen/ops/relu.h>

#include "fleet/ops/dropout.h"
#include "fleet/ops/gelu_linear.h"
#include "fleet/ops/packed_linear.h"

namespace fleet::ops {

torch::Tensor feed_forward(const torch::Tensor& x, Linear& up, Linear& down,
                           const FeedForwardOptions& options) {
  const double p = down->is_training() ? options.dropout : 0;
  if (options.activation == Activation::kGelu) {
    return gelu_linear(packed_linear(x, up->weight), up->bias, down->weight, down->bias,
                       {.dropout = p});
  }
  return down(dropout(up(x).relu_(), p));
}

}  // namespace fleet::ops
