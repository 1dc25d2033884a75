// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/memory_budget.h"

#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "fleet/comm/communicator.h"
#include "fleet/comm/world.h"
#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/error_message.h"
#include "fleet/core/generator_state.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/gradient_hook.h"
#include "fleet/core/torch/graph_leaves.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_amount.h"
#include "fleet/memory/allocator/budget_exceeded.h"
#include "fleet/train/memory/memory_strategy.h"

namespace fleet {
namespace {

RecomputeConfigs configs_of(const MemoryBudgetOptions& options) {
  if (!memory::BudgetAmount::parse(options.budget)) {
    throw UsageError("memory", format("'{}' is no amount of memory", options.budget),
                     memory::BudgetAmount::fix_for(options.budget));
  }
  RecomputeConfigs configs;
  configs.memory_budget = options.budget;
  configs.enable_offload = options.offload;
  return configs;
}

}  // namespace

// Tensors that were there before they could be counted.
class MemoryBudget::OutsideMemory {
 public:
  ~OutsideMemory() {
    for (const auto& [address, entry] : charged_) release(entry);
  }

  void charge(const memory::Tape& tape) {
    const auto& allocator = memory::BudgetAllocator::cpu();
    std::erase_if(charged_, [](const auto& item) {
      if (item.second.storage.use_count() > 0) return false;
      release(item.second);
      return true;
    });
    for (auto& weak : tape.storages_from_outside()) {
      const auto storage = weak.lock();
      if (!storage || storage->device_type() != c10::DeviceType::CPU || !storage->data()) continue;
      if (allocator.has_made(storage->data_ptr()) || charged_.contains(storage.get())) continue;
      const auto bytes = memory::counted_bytes(storage->nbytes());
      const memory::BudgetExemptScope bookkeeping;
      memory::BudgetAllocator::cpu().counter().charge(bytes, allocation::kParameters);
      charged_.emplace(storage.get(), Entry{std::move(weak), bytes});
    }
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t bytes;
  };
  static void release(const Entry& entry) {
    memory::BudgetAllocator::cpu().counter().release(entry.bytes, allocation::kParameters);
  }

  std::unordered_map<const c10::StorageImpl*, Entry> charged_;  // weak pointers keep addresses
};

namespace {

// The gradients of the leaves of a loss, so that a backward that failed can be run again. What it
// has accumulated in place cannot be taken back, but the next try computes the same numbers: there
// such a leaf gets nothing more.
class LeafGradients {
 public:
  void before_backward(const torch::Tensor& loss) {
    leaves_.clear();
    hooks_.clear();
    for (auto& leaf : compat::leaves_of(loss)) {
      const auto gradient = leaf.grad();
      const auto version = gradient.defined() ? gradient._version() : 0;
      leaves_.push_back({leaf, gradient, static_cast<uint32_t>(version), version_of(leaf)});
    }
    for (const auto& [leaf, gradient] : complete_) {
      hooks_.emplace_back(
          leaf, [leaf] { leaf.mutable_grad() = torch::Tensor(); },
          [leaf, gradient] { leaf.mutable_grad() = gradient; });
    }
  }

  void after_failure() {
    hooks_.clear();
    for (const auto& [leaf, gradient] : complete_) leaf.mutable_grad() = gradient;
    for (const auto& entry : std::exchange(leaves_, {})) {
      if (version_of(entry.leaf) != entry.leaf_version) {
        throw Error("memory",
                    "memory was short in a backward whose hooks had changed parameters already, so "
                    "it cannot be run again",
                    "raise the budget, or update the parameters after the backward");
      }
      const auto now = entry.leaf.grad();
      if (!entry.gradient.defined() || !now.is_same(entry.gradient)) {
        entry.leaf.mutable_grad() = entry.gradient;
      } else if (now._version() != entry.version) {
        complete_.emplace_back(entry.leaf, now);
      }
    }
  }

 private:
  struct Leaf {
    torch::Tensor leaf, gradient;
    uint32_t version;  // of the gradient
    uint32_t leaf_version;
  };
  static uint32_t version_of(const torch::Tensor& leaf) {
    return leaf.is_inference() ? 0 : static_cast<uint32_t>(leaf._version());
  }

  std::vector<Leaf> leaves_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> complete_;  // with their gradients
  std::vector<compat::GradientHook> hooks_;
};

}  // namespace

struct MemoryBudget::State {
  explicit State(const MemoryBudgetOptions& options)
      : strategy(configs_of(options), is_initialized() ? world()->ranks_on_host() : 1) {}

  // A forward whose backward never came is forgotten. One whose graph was kept, and is gone, was a
  // step.
  void end_pending() {
    const std::scoped_lock lock(mutex);
    ++forwards;
    enforced.reset();
    const auto before = std::exchange(stage, Stage::kIdle);
    if (before == Stage::kBetweenBackwards) {
      memory::BudgetAllocator::cpu()
          .counter()
          .take_call_peak();  // what came since is no part of it
      end_step(/*is_continued=*/true);
    } else if (before == Stage::kBeforeBackward) {
      strategy.forget();
    }
  }

  // Inside a backward of the graph of that forward, on whichever thread. False: it is not one of
  // the step.
  bool begin_backward(int64_t of_forward, bool& is_inside) {
    const std::scoped_lock lock(mutex);
    if (of_forward != forwards || stage == Stage::kIdle) return false;
    is_inside |= stage == Stage::kForward;
    if (stage == Stage::kForward) return false;
    enforced = std::make_unique<MemoryStrategy::Enforced>(&strategy);
    return true;
  }

  // `keeps_graph`: another one may follow.
  void end_backward(int64_t of_forward, bool keeps_graph, bool succeeded) {
    const std::scoped_lock lock(mutex);
    if (of_forward != forwards || stage == Stage::kIdle) return;
    const auto in_force = std::exchange(enforced, nullptr);
    const auto before = std::exchange(stage, Stage::kIdle);
    const bool is_continued = before == Stage::kBetweenBackwards;
    if (!succeeded) {
      give_up();
    } else if (keeps_graph) {
      stage = Stage::kBetweenBackwards;
      strategy.pause();
      take_report(/*is_open=*/true, is_continued);
    } else {
      end_step(is_continued);
    }
  }

  void end_step(bool is_continued) {
    strategy.end_backward();
    take_report(/*is_open=*/false, is_continued);
  }

  void take_report(bool is_open, bool is_continued) {
    auto next = strategy.report_of_call(/*updated=*/!is_open, is_open);
    if (is_continued) next.add_counts(report);
    report = next;
  }

  // The next try evicts more.
  void give_up() noexcept {
    try {
      strategy.replan(/*can_split=*/false);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it runs without a plan
    }
    strategy.forget();
  }

  std::recursive_mutex mutex;
  MemoryStrategy strategy;
  OutsideMemory outside;
  std::unique_ptr<MemoryStrategy::Enforced> enforced;  // in a `Forward`, and in its backwards
  int64_t forwards = 0;  // the number of the last, and of those that were dropped
  enum class Stage { kIdle, kForward, kBeforeBackward, kBetweenBackwards };
  Stage stage = Stage::kIdle;  // of the last
  MemoryReport report;
  int64_t attempts = 0;
};

MemoryBudget::MemoryBudget(const MemoryBudgetOptions& options)
    : state_(std::make_shared<State>(options)) {}

MemoryBudget::~MemoryBudget() {
  try {
    state_->end_pending();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no step follows
  }
  state_.reset();
  auto& allocator = memory::BudgetAllocator::cpu();
  if (!allocator.is_on()) allocator.trim();
}

torch::Tensor MemoryBudget::step(const std::function<torch::Tensor()>& loss,
                                 const StepOptions& options) {
  auto& state = *state_;
  state.end_pending();
  const MemoryStrategy::Enforced enforced(&state.strategy);
  const auto generator = GeneratorState::of_default();
  LeafGradients gradients;
  for (state.attempts = 1;; ++state.attempts) {
    std::string message;
    bool is_of_budget = false;
    memory::WriteUndo undo;
    try {
      torch::Tensor value;
      memory::with_budget_errors([&] {
        {
          MemoryStrategy::Forward forward(&state.strategy, options.samples);
          forward.tape().set_undo(&undo);
          value = loss();
          state.outside.charge(forward.tape());
          forward.finish();
        }
        gradients.before_backward(value);
        if (options.backward) {
          options.backward(value);
        } else {
          compat::run_autograd([&] { value.backward(); });
        }
      });
      state.strategy.end_backward();
      state.report = state.strategy.report_of_call(/*updated=*/true, /*window_is_open=*/false);
      return value.detach();
    } catch (const c10::OutOfMemoryError& error) {
      is_of_budget = dynamic_cast<const memory::BudgetExceeded*>(&error) != nullptr;
      message = without_fix(error_message(error));
    } catch (...) {
      state.strategy.forget();
      throw;
    }
    // Outside of the handler, since an exception may hold the frames of the forward.
    const memory::BudgetExemptScope bookkeeping;
    gradients.after_failure();
    if (options.before_retry) options.before_retry();
    compat::flush_failed_backward();
    const bool has_another_plan = state.strategy.replan(/*can_split=*/false);
    state.strategy.forget();
    undo.restore();
    generator.restore();
    if (has_another_plan) continue;
    throw Error("memory", format("no plan is left for this step: {}", message),
                is_of_budget ? "raise the budget, use a smaller batch, or let values wait in a "
                               "file (offload)"
                             : "free memory on this machine, or use a smaller budget");
  }
}

struct MemoryBudget::Forward::State {
  std::shared_ptr<MemoryBudget::State> budget;
  std::optional<compat::BackwardWatch> watch;
  std::optional<MemoryStrategy::Forward> forward;
  std::shared_ptr<bool> had_backward = std::make_shared<bool>(false);
};

MemoryBudget::Forward::Forward(std::unique_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<MemoryBudget::Forward> MemoryBudget::forward(int64_t samples) {
  auto& state = *state_;
  const std::scoped_lock lock(state.mutex);
  state.end_pending();
  state.stage = State::Stage::kForward;
  state.enforced = std::make_unique<MemoryStrategy::Enforced>(&state.strategy);
  state.attempts = 1;
  auto result = std::make_unique<Forward::State>();
  result->budget = state_;
  const std::weak_ptr<State> weak = state_;
  const auto number = state.forwards;
  result->watch.emplace([weak, number, had = result->had_backward] {
    const auto budget = weak.lock();
    if (!budget || !budget->begin_backward(number, *had)) return;
    // With create_graph it makes a graph of its own, which nobody has recorded: what goes through
    // that is no part of the step.
    const bool keeps = compat::current_backward_keeps_graph() && !at::GradMode::is_enabled();
    compat::on_backward_end([weak, number, keeps](bool succeeded) {
      if (const auto living = weak.lock()) living->end_backward(number, keeps, succeeded);
    });
  });
  result->forward.emplace(&state.strategy, samples, MemoryStrategy::Forward::Restart::kByCaller);
  return std::unique_ptr<Forward>(new Forward(std::move(result)));
}

void MemoryBudget::Forward::finish() {
  auto& budget = *state_->budget;
  const std::scoped_lock lock(budget.mutex);
  budget.outside.charge(state_->forward->tape());
  state_->forward->finish();
  state_->forward.reset();
  if (*state_->had_backward) {
    budget.stage = MemoryBudget::State::Stage::kIdle;
    budget.strategy.forget();
    budget.enforced.reset();
    budget.report = budget.strategy.report_of_call(/*updated=*/true, /*window_is_open=*/false);
  } else {
    budget.enforced.reset();  // until backward begins: what lies between is no part of the step
    budget.stage = MemoryBudget::State::Stage::kBeforeBackward;
  }
  state_.reset();
}

MemoryBudget::Forward::~Forward() {
  if (!state_) return;
  auto& budget = *state_->budget;
  const std::scoped_lock lock(budget.mutex);
  state_->forward.reset();
  budget.enforced.reset();
  budget.stage = MemoryBudget::State::Stage::kIdle;
  budget.give_up();
}

MemoryReport MemoryBudget::report() const { return state_->report; }
int64_t MemoryBudget::attempts() const { return state_->attempts; }

std::shared_ptr<const memory::Plan> MemoryBudget::plan(int64_t samples) const {
  return state_->strategy.plans()->plan(samples);
}

std::shared_ptr<const memory::StepProfile> MemoryBudget::profile(int64_t samples) const {
  return state_->strategy.plans()->profile(samples);
}

}  // namespace fleet
