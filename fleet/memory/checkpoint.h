// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <torch/types.h>

namespace fleet {

/// Names a value of a forward, at which `recompute_configs.checkpoints` may cut it; returns it.
/// Without recompute it does nothing.
///
///   x = fleet::checkpoint(layer->forward(x), "encoder.layer.3");
torch::Tensor checkpoint(torch::Tensor x, std::string_view name);

}  // namespace fleet
