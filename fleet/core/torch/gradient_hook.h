// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include <torch/types.h>

#include "fleet/core/torch/torch_version.h"

namespace fleet::compat {

/// Calls `before` each time autograd is about to accumulate a gradient into `parameter.grad()`, and
/// `ready` when it has done so, inside backward, on the thread that computed it. Ends with the
/// handle. LibTorch offers this only on the node that accumulates into a leaf, and holds that node
/// weakly: the handle keeps it alive.
class GradientHook {
 public:
  GradientHook() = default;
  GradientHook(const torch::Tensor& parameter, std::function<void()> before,
               std::function<void()> ready);
  ~GradientHook();
  GradientHook(GradientHook&&) noexcept;
  GradientHook& operator=(GradientHook&&) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fleet::compat
