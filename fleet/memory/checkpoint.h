#pragma once

#include <string_view>

#include <torch/types.h>

namespace fleet {

/// Names a value at which the net may be cut for recompute; returns it.
///
///   x = fleet::checkpoint(layer(x), "encoder.layer.3");
torch::Tensor checkpoint(torch::Tensor x, std::string_view name);

}  // namespace fleet
