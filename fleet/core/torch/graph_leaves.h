// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

#include "fleet/core/torch/torch_version.h"

namespace fleet::compat {

/// The leaves into whose `grad()` a backward from `root` accumulates, each once.
std::vector<torch::Tensor> leaves_of(const torch::Tensor& root);

}  // namespace fleet::compat
