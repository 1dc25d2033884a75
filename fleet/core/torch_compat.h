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

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

namespace fleet::compat {

using Stack = std::vector<c10::IValue>;

/// Calls `before` each time autograd is about to put a gradient into `parameter.grad()`, and
/// `landed` when it has done so, inside backward, on the thread that computed it. Ends with the
/// handle. LibTorch offers this only on the node that accumulates into a leaf, and holds that node
/// weakly: the handle keeps it alive.
class GradientHook {
 public:
  GradientHook() = default;
  GradientHook(const torch::Tensor& parameter, std::function<void()> before,
               std::function<void()> landed);
  ~GradientHook();
  GradientHook(GradientHook&&) noexcept;
  GradientHook& operator=(GradientHook&&) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// While it lives, ops that this thread calls pass through the kernels that Fleet registered with
/// FLEET_INTERCEPT_KEY, above autograd and autocast, as the user called them. Ops without such a
/// kernel go to this thread's OpObserver, or straight on to the engine.
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

/// Sees the ops that this thread calls inside an InterceptScope, one by one, as the user called
/// them; not those that they call themselves.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  /// Must run the op: `op.callBoxed(stack)`.
  virtual void call(const c10::OperatorHandle& op, Stack* stack) = 0;
};

/// What Fleet keeps in place of a tensor that autograd saves for backward.
class SavedTensor {
 public:
  virtual ~SavedTensor() = default;
  virtual torch::Tensor unpack() = 0;
};

/// Sees every tensor that autograd saves on this thread.
class SaveObserver {
 public:
  virtual ~SaveObserver() = default;
  virtual std::unique_ptr<SavedTensor> save(const torch::Tensor& tensor) = 0;
};

/// Makes `ops` and `saves` the observers of this thread while it lives; null for none. Inside a
/// backward there are none, whatever the thread had set before.
class ObserverScope {
 public:
  ObserverScope(OpObserver* ops, SaveObserver* saves);
  ~ObserverScope();
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  OpObserver* ops_;
  SaveObserver* saves_;
};

/// This thread's; null for none.
OpObserver* op_observer();

/// Runs an op that was intercepted as if no kernel of Fleet's stood in its way: past the observer
/// if there is one.
void call_observed(const c10::OperatorHandle& op, Stack* stack);

/// `ended` is called at the end of each backward that is not inside another, also of one that
/// throws, on its thread.
void on_backward_end(void (*ended)());

/// The op that this thread is in, as the user called it ("aten::linear"), or the node of a backward
/// ("AddmmBackward0", mangled as typeid does); null when neither is known.
const char* current_op();

/// Throws away what a failed backward left in this thread's queue: LibTorch itself does that only
/// with the next backward, and holds the graph and its tensors until then.
void flush_failed_backward();

/// Gives a tensor a history that must not be followed, so that autograd takes it for the result of
/// an op: other than on a leaf, in-place ops on it are allowed.
void pretend_history(const torch::Tensor& tensor);

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
  /// By number of the op, in order of registration; ops behind its end are left alone.
  using Table = std::vector<Precision>;

 private:
  friend class CastRulesScope;
  std::shared_ptr<const Table> table_;  // shared with ops that were recorded: null for no rule
};

/// The rules for this thread.
class CastRulesScope {
 public:
  explicit CastRulesScope(const CastRules& rules);
  ~CastRulesScope();
  CastRulesScope(const CastRulesScope&) = delete;
  CastRulesScope& operator=(const CastRulesScope&) = delete;

 private:
  std::shared_ptr<const CastRules::Table> previous_;
};

/// What an op's work depends on beside its arguments: dispatch keys, grad mode, autocast.
class CallState {
 public:
  static CallState now();
  bool grad_mode() const { return grad_mode_; }

 private:
  friend class CallStateScope;
  c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  bool grad_mode_ = true;
  torch::ScalarType cpu_dtype_ = torch::kFloat, cuda_dtype_ = torch::kFloat;
  std::shared_ptr<const CastRules::Table> rules_;
};

/// Brings such a state back, on any thread, with another grad mode if asked; with autocast's cache
/// of casts off, since what it would hold belongs to another time.
class CallStateScope {
 public:
  explicit CallStateScope(const CallState& state, bool grad_mode);
  ~CallStateScope();
  CallStateScope(const CallStateScope&) = delete;
  CallStateScope& operator=(const CallStateScope&) = delete;

 private:
  void set(const CallState& state, bool grad_mode, bool cache);
  CallState before_;
  bool cache_;
};

/// What this CPU lacks to multiply fast in bf16 or half: "AVX-512 BF16 or AMX". Empty when it lacks
/// nothing, or is of a kind that is not known here.
std::string missing_instructions(torch::ScalarType dtype);

}  // namespace fleet::compat

/// The dispatch key that nothing else in the engine uses.
#define FLEET_INTERCEPT_KEY TESTING_ONLY_GenericMode
