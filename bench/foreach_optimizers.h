// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include <torch/types.h>

namespace fleet::bench {

/// LARS and LAMB as one writes them with LibTorch's ops, over lists of tensors where it has such
/// ops: what an update costs without Fleet. Each call is one update.
std::function<void()> foreach_lars(std::vector<torch::Tensor> values,
                                   std::vector<torch::Tensor> gradients);
std::function<void()> foreach_lamb(std::vector<torch::Tensor> values,
                                   std::vector<torch::Tensor> gradients);

}  // namespace fleet::bench
