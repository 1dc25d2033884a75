// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/interception.h"

#include <atomic>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

namespace fleet::compat {
namespace {

struct ThreadObservers {
  OpObserver* ops = nullptr;
  SaveObserver* saves = nullptr;
  const char* op = nullptr;
  int backward_depth = 0;
};
thread_local ThreadObservers t_observers;

std::atomic<void (*)()> g_backward_ended{nullptr};

class Hook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hook(SaveObserver* observer) : observer_(observer) {}
  void call_pack_hook(const torch::Tensor& tensor) override { saved_ = observer_->save(tensor); }
  torch::Tensor call_unpack_hook() override { return saved_->unpack(); }

 private:
  SaveObserver* observer_;
  std::unique_ptr<SavedTensor> saved_;
};

// LibTorch's autograd engine, with this thread's SaveObserver as its default saved-tensor hooks.
class ObservedEngine final : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!t_observers.saves) return nullptr;
    return std::make_unique<Hook>(t_observers.saves);
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    struct Depth {
      Depth() { ++t_observers.backward_depth; }
      ~Depth() {
        const auto ended = g_backward_ended.load();
        if (--t_observers.backward_depth == 0 && ended) ended();
      }
    } const depth;
    const NoInterceptScope no_intercept;
    const ObserverScope nobody(nullptr, nullptr);
    return Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  static Engine& get() {
    static auto* const engine = new ObservedEngine();  // its threads outlive main
    return *engine;
  }
};

void install_engine() {
  static const bool installed = [] {
    torch::autograd::set_default_engine_stub(&ObservedEngine::get);
    return true;
  }();
  (void)installed;
}

void intercepted(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  if (!t_observers.ops || !t_observers.ops->opens(op)) return call_observed(op, stack);
  // Without an exclude guard, so that the ops that it calls are intercepted in turn.
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER,
                                  c10::DispatchKey::FLEET_INTERCEPT_KEY);
  op.redispatchBoxed(keys & below, stack);
}

}  // namespace

ObserverScope::ObserverScope(OpObserver* ops, SaveObserver* saves)
    : ops_(std::exchange(t_observers.ops, ops)), saves_(std::exchange(t_observers.saves, saves)) {
  if (saves) install_engine();
}

ObserverScope::~ObserverScope() {
  t_observers.ops = ops_;
  t_observers.saves = saves_;
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
  } const name(op.schema().name().c_str());
  if (t_observers.ops) {
    t_observers.ops->call(op, stack);
  } else {
    op.callBoxed(stack);
  }
}

void on_backward_end(void (*ended)()) { g_backward_ended = ended; }

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

void pretend_history(const torch::Tensor& tensor) {
  auto node = c10::make_intrusive<torch::autograd::Error>("this graph is not for backward");
  node->add_input_metadata(tensor);
  torch::autograd::impl::set_gradient_edge(tensor, torch::autograd::Edge(std::move(node), 0));
}

}  // namespace fleet::compat

TORCH_LIBRARY_IMPL(_, FLEET_INTERCEPT_KEY, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fleet::compat::intercepted>());
}
