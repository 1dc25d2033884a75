// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

#include "fleet/core/torch/torch_version.h"

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

namespace fleet::compat {

using Stack = std::vector<c10::IValue>;

/// While it lives, ops that this thread calls pass through the kernels that Fleet registered with
/// FLEET_INTERCEPT_KEY, above autograd and autocast, as the user called them. Ops without such a
/// kernel go to this thread's OpObserver, or straight on to LibTorch.
class InterceptScope {
 public:
  InterceptScope() = default;

 private:
  c10::impl::IncludeDispatchKeyGuard guard_{c10::DispatchKey::TESTING_ONLY_GenericMode};
};

/// The reverse, inside a kernel: what it calls goes straight to LibTorch.
class NoInterceptScope {
 public:
  NoInterceptScope() = default;

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::DispatchKey::TESTING_ONLY_GenericMode};
};

/// Sees the ops that this thread calls inside an InterceptScope, each as the user called
/// them; not those that they call themselves.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  /// Whether it sees the ops that this op calls instead of the op itself. Only ops that LibTorch
  /// implements by other ops (`is_composite`) can be decomposed.
  virtual bool decomposes(const c10::OperatorHandle& /*op*/) { return false; }
  /// Must run the op: `op.callBoxed(stack)`.
  virtual void call(const c10::OperatorHandle& op, Stack* stack) = 0;
};

/// What Fleet keeps in place of a tensor that autograd saves for backward.
class SavedTensor {
 public:
  virtual ~SavedTensor() = default;
  virtual torch::Tensor unpack() = 0;
};

/// Sees every tensor that autograd saves on this thread, but for those that hooks of the user's own
/// (torch.autograd.graph.saved_tensors_hooks) take.
class SaveObserver {
 public:
  virtual ~SaveObserver() = default;
  virtual std::unique_ptr<SavedTensor> save(const torch::Tensor& tensor) = 0;
  /// Whether it goes before the user's hooks: for graphs that the user never sees.
  virtual bool precedes_user_hooks() const { return false; }
};

/// Makes `ops` and `saves` the observers of this thread while it lives; null for none. They see
/// nothing of a backward that runs meanwhile, nor of what these run:
///
/// - torch.func transforms and TorchDispatchModes, which replace the ops by others;
/// - code whose writes the dispatcher does not see (`set_opaque_code`).
///
/// While one lives that observes saves, LibTorch's default autograd engine is one of Fleet's that
/// passes everything on to the one before it.
class ObserverScope {
 public:
  ObserverScope(OpObserver* ops, SaveObserver* saves);
  ~ObserverScope();
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  OpObserver* ops_;
  SaveObserver* saves_;
  int backward_;
  bool installs_;
};

/// This thread's; null for none.
OpObserver* op_observer();

/// LibTorch implements it by other ops, whose gradients make up its own
/// (CompositeImplicitAutograd).
bool is_composite(const c10::OperatorHandle& op);

/// Runs an op that was intercepted as if no kernel of Fleet's stood in its way: past the observer
/// if there is one.
void call_observed(const c10::OperatorHandle& op, Stack* stack);

/// What every op does inside an InterceptScope that has no kernel of Fleet's: composites that the
/// observer `decomposes` are decomposed, others go to it. For kernels that leave a call as it is.
void call_intercepted(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

/// The backward that this thread is in, the innermost; -1: none.
int current_backward();
/// Whether its graph stays for another backward (retain_graph).
bool current_backward_keeps_graph();

/// Whether this thread runs other ops than the program's own: those of another backward than
/// `backward`, or of a torch.func transform or a TorchDispatchMode, which replace ops by others.
bool runs_foreign_ops(int backward);

/// Calls `ended` at the end of the backward that this thread is in: with true after its last node,
/// with false if it failed. Once, on one of its threads. Only inside a backward.
void on_backward_end(std::function<void(bool succeeded)> ended);

/// Calls `begun` once inside each backward that reads what a SaveObserver has saved on this thread
/// while it lived, before it reads it: several where the graph is kept (retain_graph), none where
/// it is gone without one. Backwards of other graphs do not matter. Of one inside another both are
/// called, the outer first.
class BackwardWatch {
 public:
  explicit BackwardWatch(std::function<void()> begun);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Calls `work`, which runs a backward: as all of Fleet does.
void run_autograd(const std::function<void()>& work);
/// For programs whose nodes throw what C++ does not know, such as Python's: `run` calls `work` and
/// translates what it throws. Null: there are none.
void set_autograd_runner(void (*run)(const std::function<void()>& work));

/// For programs with code whose writes to tensors no dispatcher sees, such as kernels that
/// torch.compile made: `is_inside` tells whether this thread runs such code. It is asked where
/// gradients are off, which they are inside of it. Null: there is none.
void set_opaque_code(bool (*is_inside)());

/// LibTorch's default autograd engine, for tests that compare.
const void* default_engine();

/// The op that this thread is in, as the user called it ("aten::linear"), or the node of a backward
/// ("AddmmBackward0", mangled as typeid does); null when neither is known.
const char* current_op();

/// Throws away what a failed backward left in this thread's queue: LibTorch itself does that only
/// with the next backward, and holds the graph and its tensors until then.
void flush_failed_backward();

/// Gives a tensor a grad_fn that must never run, so that autograd takes it for the result of an op:
/// other than on a leaf, in-place ops on it are allowed.
void set_placeholder_grad_fn(const torch::Tensor& tensor);

}  // namespace fleet::compat

/// The dispatch key that nothing else in LibTorch uses.
#define FLEET_INTERCEPT_KEY TESTING_ONLY_GenericMode
