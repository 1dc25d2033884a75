#pragma once

// Everything in Fleet that depends on the version of LibTorch, or reaches below its public C++ API,
// is here.

#include <functional>
#include <memory>
#include <string>
#include <vector>

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

/// While it lives, ops that this thread calls run as if autocast was off.
class NoAutocastScope {
 public:
  NoAutocastScope() = default;

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

/// The engine's ops ("softmax", "conv2d"), each once whatever its overloads, sorted.
std::vector<std::string> op_names();

/// Why the precision of an op of the engine cannot be chosen ("it returns a view"); empty when it
/// can.
std::string why_not_castable(const std::string& op);

/// Ops that autocast runs in another precision than its own lists say: each casts its floating
/// arguments, except double ones, to autocast's type (`low`) or to float (`fp32`). Takes names for
/// which `why_not_castable` is empty. The kernels that do it are registered with the engine once
/// per name and stay; they do nothing of their own where no CastRulesScope names their op.
class CastRules {
 public:
  CastRules(const std::vector<std::string>& low, const std::vector<std::string>& fp32);

  enum class Precision : char { kEngine, kLow, kFp32 };
  Precision of(size_t op) const { return op < rules_.size() ? rules_[op] : Precision::kEngine; }

 private:
  void set(const std::string& op, Precision precision);

  std::vector<Precision> rules_;  // by number of the op, in order of registration
};

/// The rules for this thread; they must outlive it.
class CastRulesScope {
 public:
  explicit CastRulesScope(const CastRules& rules);
  ~CastRulesScope();
  CastRulesScope(const CastRulesScope&) = delete;
  CastRulesScope& operator=(const CastRulesScope&) = delete;

 private:
  const CastRules* previous_;
};

/// What this CPU lacks to multiply fast in bf16 or half: "AVX-512 BF16 or AMX". Empty when it lacks
/// nothing, or is of a kind that is not known here.
std::string missing_instructions(torch::ScalarType dtype);

}  // namespace fleet::compat

/// The dispatch key that nothing else in the engine uses.
#define FLEET_INTERCEPT_KEY TESTING_ONLY_GenericMode
