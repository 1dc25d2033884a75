#pragma once

// Everything in Fleet that depends on the version of LibTorch, or reaches below its public C++ API, is here.

#include <functional>
#include <memory>

#include <torch/types.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15)
#error "Fleet needs LibTorch 2.15 or newer"
#endif

namespace fleet::compat {

/// Calls `landed` each time autograd has put a gradient into `parameter.grad()`, inside backward, on the
/// thread that computed it. Ends with the handle. LibTorch offers this only on the node that accumulates
/// into a leaf, and holds that node weakly: the handle keeps it alive.
class GradientHook {
 public:
  GradientHook() = default;
  GradientHook(const torch::Tensor& parameter, std::function<void()> landed);
  ~GradientHook();
  GradientHook(GradientHook&&) noexcept;
  GradientHook& operator=(GradientHook&&) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fleet::compat
