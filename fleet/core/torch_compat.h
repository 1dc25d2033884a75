#pragma once

// Everything in Fleet that depends on the version of LibTorch, or reaches below its public C++ API,
// is here.

#include <functional>
#include <memory>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15)
#error "Fleet needs LibTorch 2.15 or newer"
#endif

namespace fleet::compat {

/// Calls `landed` each time autograd has put a gradient into `parameter.grad()`, inside backward,
/// on the thread that computed it. Ends with the handle. LibTorch offers this only on the node that
/// accumulates into a leaf, and holds that node weakly: the handle keeps it alive.
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

/// While it lives, ops that this thread calls pass through the kernels that Fleet registered with
/// FLEET_INTERCEPT_KEY, above autograd and autocast, as the user called them. Ops without such a
/// kernel fall through to the engine.
class InterceptScope {
 public:
  InterceptScope() = default;

 private:
  c10::impl::IncludeDispatchKeyGuard guard_{c10::DispatchKey::TESTING_ONLY_GenericMode};
};

/// The reverse, inside a kernel: what it calls goes straight to the engine.
class NoInterceptScope {
 public:
  NoInterceptScope() = default;

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::TESTING_ONLY_GenericMode};
};

}  // namespace fleet::compat

/// The dispatch key that nothing else in the engine uses.
#define FLEET_INTERCEPT_KEY TESTING_ONLY_GenericMode
