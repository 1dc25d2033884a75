// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/torch/observed_engine.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include <ATen/SavedTensorHooks.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "fleet/core/torch/interception.h"

namespace fleet::compat {

// Of what is saved while a BackwardWatch lives.
class BackwardReads {
 public:
  BackwardReads(std::shared_ptr<BackwardReads> outer, std::function<void()> begun)
      : outer_(std::move(outer)), begun_(std::move(begun)) {}

  void reads() {
    const int backward = current_backward();
    if (backward < 0 || last_.load(std::memory_order_relaxed) == backward) return;
    if (outer_) outer_->reads();
    {
      const std::scoped_lock lock(mutex_);
      last_ = backward;
      if (std::ranges::find(seen_, backward) != seen_.end()) return;
      seen_.push_back(backward);
    }
    begun_();
  }

 private:
  std::shared_ptr<BackwardReads> outer_;
  std::function<void()> begun_;
  std::atomic<int> last_{-1};
  std::mutex mutex_;
  c10::SmallVector<int, 4> seen_;  // guarded by mutex_
};

namespace {

using torch::autograd::Engine;

thread_local std::shared_ptr<BackwardReads> t_reads;

class Hook final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const torch::Tensor& tensor) override { saved_ = save_observed(tensor); }
  torch::Tensor call_unpack_hook() override {
    if (reads_) reads_->reads();
    return saved_->unpack();
  }

 private:
  std::unique_ptr<SavedTensor> saved_;
  std::shared_ptr<BackwardReads> reads_ = t_reads;
};

// The default before; for as long as the process lives, since graphs may ask it at any time.
std::atomic<Engine*> g_before{nullptr};

class ObservedEngine final : public Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    const auto order = save_observer_order();
    if (order == SaveObserverOrder::kFirst) return std::make_unique<Hook>();
    if (auto hooks = before().get_default_saved_variable_hooks()) return hooks;
    // torch.compile and torch.func switch hooks off while they trace.
    const auto& user = at::SavedTensorDefaultHooks::get_tls_state();
    if (order == SaveObserverOrder::kNone || user.is_tracing || user.disabled_error_message)
      return nullptr;
    return std::make_unique<Hook>();
  }

  std::vector<std::unique_ptr<torch::autograd::NodeCreationHook>> get_node_creation_hooks()
      override {
    return before().get_node_creation_hooks();
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return before().make_anomaly_metadata();
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return before().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      c10::intrusive_ptr<torch::autograd::Node> graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return before().execute_with_graph_task(graph_task, std::move(graph_root),
                                            std::move(input_buffer));
  }

  static Engine& get() {
    static auto* const engine = new ObservedEngine();
    return *engine;
  }
  static Engine& before() { return *g_before.load(std::memory_order_relaxed); }
};

std::mutex g_mutex;  // guards the next, and who is installed
int g_installed = 0;

}  // namespace

void install_engine() {
  const std::lock_guard lock(g_mutex);
  ++g_installed;
  auto& now = Engine::get_default_engine();
  if (&now == &ObservedEngine::get()) return;
  // The first time, or somebody else was installed meanwhile, as Python's is when it is loaded.
  g_before = &now;
  torch::autograd::set_default_engine_stub(&ObservedEngine::get);
}

void uninstall_engine() {
  const std::lock_guard lock(g_mutex);
  if (--g_installed > 0) return;
  if (&Engine::get_default_engine() != &ObservedEngine::get()) return;
  torch::autograd::set_default_engine_stub(&ObservedEngine::before);
}

const void* default_engine() { return &Engine::get_default_engine(); }

struct BackwardWatch::State {
  std::shared_ptr<BackwardReads> before;
};

BackwardWatch::BackwardWatch(std::function<void()> begun)
    : state_(std::make_unique<State>(State{t_reads})) {
  t_reads = std::make_shared<BackwardReads>(t_reads, std::move(begun));
}
BackwardWatch::~BackwardWatch() { t_reads = std::move(state_->before); }

void on_backward_end(std::function<void(bool succeeded)> ended) {
  // LibTorch forgets its callbacks when a backward fails; their end is the end of the backward.
  struct Callback {
    explicit Callback(std::function<void(bool)> ended) : ended(std::move(ended)) {}
    ~Callback() { call(false); }
    void call(bool succeeded) {
      if (const auto once = std::exchange(ended, nullptr)) once(succeeded);
    }
    std::function<void(bool)> ended;
  };
  auto callback = std::make_shared<Callback>(std::move(ended));
  Engine::get_default_engine().queue_callback([callback] { callback->call(true); });
}

}  // namespace fleet::compat
