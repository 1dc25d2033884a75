// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/ops/layers/linear.h"

namespace fleet::ops {

enum class Activation { kGelu, kRelu };  // kGelu: with erf

struct FeedForwardOptions {
  Activation activation = Activation::kGelu;
  double dropout = 0;  // behind the activation, while `down` is in training mode
};

/// down(dropout(activation(up(x)))): the wide part of a transformer's block.
torch::Tensor feed_forward(const torch::Tensor& x, Linear& up, Linear& down,
                           const FeedForwardOptions& options = {});

}  // namespace fleet::ops
