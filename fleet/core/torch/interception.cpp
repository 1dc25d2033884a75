// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/interception.h"

#include <atomic>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "fleet/core/torch/observed_engine.h"

namespace fleet::compat {
namespace {

struct ThreadObservers {
  OpObserver* ops = nullptr;
  SaveObserver* saves = nullptr;
  const char* op = nullptr;
  int backward = -1;  // the one in which they were set
};
thread_local ThreadObservers t_observers;

std::atomic<bool (*)()> g_is_opaque{nullptr};
std::atomic<void (*)(const std::function<void()>&)> g_runner{nullptr};

bool is_bypassed() { return runs_foreign_ops(t_observers.backward); }

bool is_opaque() {
  if (at::GradMode::is_enabled()) return false;
  const auto is_inside = g_is_opaque.load(std::memory_order_relaxed);
  return is_inside && is_inside();
}

}  // namespace

ObserverScope::ObserverScope(OpObserver* ops, SaveObserver* saves)
    : ops_(std::exchange(t_observers.ops, ops)),
      saves_(std::exchange(t_observers.saves, saves)),
      backward_(std::exchange(t_observers.backward, current_backward())),
      installs_(saves != nullptr) {
  if (installs_) install_engine();
}

ObserverScope::~ObserverScope() {
  if (installs_) uninstall_engine();
  t_observers.ops = ops_;
  t_observers.saves = saves_;
  t_observers.backward = backward_;
}

std::unique_ptr<SavedTensor> save_observed(const torch::Tensor& tensor) {
  return t_observers.saves->save(tensor);
}

SaveObserverOrder save_observer_order() {
  if (!t_observers.saves || is_bypassed()) return SaveObserverOrder::kNone;
  return t_observers.saves->precedes_user_hooks() ? SaveObserverOrder::kFirst
                                                  : SaveObserverOrder::kAfterUserHooks;
}

OpObserver* op_observer() { return t_observers.ops; }

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
}

void call_observed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const NoInterceptScope no_intercept;
  struct Name {
    explicit Name(const char* name) : before(std::exchange(t_observers.op, name)) {}
    ~Name() { t_observers.op = before; }
    const char* before;
  };
  if (t_observers.ops && (is_bypassed() || is_opaque())) return op.callBoxed(stack);
  const Name name(op.schema().name().c_str());
  if (t_observers.ops) {
    t_observers.ops->call(op, stack);
  } else {
    op.callBoxed(stack);
  }
}

void call_intercepted(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  if (!t_observers.ops || is_bypassed() || !t_observers.ops->decomposes(op)) {
    return call_observed(op, stack);
  }
  // Without an exclude guard, so that the ops that it calls are intercepted in turn.
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER,
                                  c10::DispatchKey::FLEET_INTERCEPT_KEY);
  op.redispatchBoxed(keys & below, stack);
}

bool runs_foreign_ops(int backward) {
  if (torch::autograd::get_current_graph_task_id() != backward) return true;
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return true;
  return c10::impl::tls_local_dispatch_key_set().included_.has(
      c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

int current_backward() { return torch::autograd::get_current_graph_task_id(); }

void set_opaque_code(bool (*is_inside)()) { g_is_opaque = is_inside; }

void set_autograd_runner(void (*run)(const std::function<void()>& work)) { g_runner = run; }

void run_autograd(const std::function<void()>& work) {
  const auto run = g_runner.load();
  run ? run(work) : work();
}

const char* current_op() {
  if (t_observers.op) return t_observers.op;
  if (const auto node = torch::autograd::get_current_node()) return typeid(*node).name();
  return nullptr;
}

namespace {

// Runs after every other node that a queue may hold.
struct LastNode final : torch::autograd::Node {
  LastNode() : Node(/*sequence_nr=*/0) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*gradients*/) override {
    return {};
  }
};

}  // namespace

void flush_failed_backward() {
  const NoInterceptScope no_intercept;
  const ObserverScope nobody(nullptr, nullptr);
  const torch::AutoGradMode grad(true);
  auto root = torch::ones({1});
  auto last = c10::make_intrusive<LastNode>();
  last->add_input_metadata(root);
  torch::autograd::impl::set_gradient_edge(root, torch::autograd::Edge(std::move(last), 0));
  root.backward();
}

void set_placeholder_grad_fn(const torch::Tensor& tensor) {
  auto node = c10::make_intrusive<torch::autograd::Error>("this graph is not for backward");
  node->add_input_metadata(tensor);
  torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::Edge(std::move(node), 0));
}

}  // namespace fleet::compat

TORCH_LIBRARY_IMPL(_, FLEET_INTERCEPT_KEY, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fleet::compat::call_intercepted>());
}
