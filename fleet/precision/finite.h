// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/core/model_handle.h"

namespace fleet::precision {

/// Whether no element is NaN or infinite. Reads the tensor once, at the speed of a sum, unless it
/// has to look closer.
bool all_finite(const torch::Tensor& tensor);

/// The name of the first tensor that holds NaN or infinity. Undefined tensors pass.
///
///   if (auto name = precision::first_non_finite(ModelHandle(net).parameters())) ...
std::optional<std::string> first_non_finite(const std::vector<NamedTensor>& tensors);

}  // namespace fleet::precision
