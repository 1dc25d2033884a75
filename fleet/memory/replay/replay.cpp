// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/replay/replay.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>

#include "fleet/core/error.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/call_state.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/replay/replay_need.h"
#include "fleet/memory/replay/replay_rules.h"

namespace fleet::memory {
namespace {

/// Ends a replayed op once the last tensor that is wanted of it was saved. Thrown through
/// LibTorch's code only: no foreign op, which may be written in Python, is ended that way.
struct StopOp final : std::exception {
  const char* what() const noexcept override { return "a replay needs no more of this op"; }
};

bool may_be_stopped(const OpRecord& record) {
  const std::string_view name = record.traits->name;
  return name.starts_with("aten::") || name.starts_with("fleet::");
}

/// Captures the tensors that autograd saves while an op is replayed.
class Capture final : public compat::SaveObserver {
 public:
  Capture(int saves, bool stop_after_last) : wanted_(saves, nullptr), may_stop_(stop_after_last) {}

  void want(KeptValue* kept) {
    const int save = kept->origin().save;
    others_.push_back(kept);
    wanted_[static_cast<size_t>(save)] = kept;
    last_ = std::max(last_, save);
  }

  std::unique_ptr<compat::SavedTensor> save(const torch::Tensor& tensor) override {
    const int n = seen_++;
    if (n < static_cast<int>(wanted_.size()) && wanted_[static_cast<size_t>(n)]) {
      taken_.emplace_back(n, tensor.tensor_data());
    }
    if (may_stop_ && n == last_) throw StopOp{};
    return std::make_unique<Unusable>();
  }

  bool precedes_user_hooks() const override { return true; }

  int seen() const { return seen_; }

  /// Throws if a tensor has another shape or type than in the forward.
  void hand_out(const OpRecord& record) const {
    for (const auto& [n, tensor] : taken_) {
      for (auto* kept : others_) {
        if (kept->origin().save != n) continue;
        kept->check_same(tensor, record.traits->name);
        kept->refill(tensor);
      }
    }
  }

 private:
  struct Unusable final : compat::SavedTensor {
    torch::Tensor unpack() override {
      throw Error("recompute", "a backward went through the graph of a replay");
    }
  };

  std::vector<KeptValue*> wanted_;
  std::vector<KeptValue*> others_;
  std::vector<std::pair<int, torch::Tensor>> taken_;
  bool may_stop_;
  int last_ = -1;
  int seen_ = 0;
};

/// Restores the rng state of an op, and at its end the state from before. No longer than the op
/// takes: what other threads use of the generator meanwhile does not advance it.
class RngReplay {
 public:
  explicit RngReplay(const GeneratorState& from) : before_(from.generator()) { from.restore(); }
  ~RngReplay() { before_.restore(); }
  RngReplay(const RngReplay&) = delete;
  RngReplay& operator=(const RngReplay&) = delete;

 private:
  GeneratorState before_;
};

struct AtomicTotals {
  std::atomic<int64_t> recomputations{0}, ops{0}, stopped_early{0}, nanoseconds{0};
};
AtomicTotals g_totals;
thread_local ReplayObserver* t_observer = nullptr;
thread_local double t_left_out = 0;  // seconds, of all evictions and recomputations so far

using Clock = std::chrono::steady_clock;

// Calls the needed ops in their order, and refills the wanted values.
class Replay {
 public:
  using Values = std::vector<std::shared_ptr<KeptValue>>;

  Replay(const ReplayNeed& need, const Values& wanted) : need_(need), records_(need.needed()) {
    for (const auto& kept : wanted) {
      if (kept->origin().value >= 0) {
        values_.push_back(kept.get());
        ++uses_[kept->origin().value];
      } else {
        saves_[kept->origin().op].push_back(kept.get());
      }
    }
    std::ranges::stable_sort(values_, {}, [](const KeptValue* k) { return k->origin().time; });
    for (const auto* record : records_) {
      for (const auto& input : record->inputs) {
        if (!need_.is_kept(input)) ++uses_[input.value];
      }
    }
  }

  void run() {
    const compat::NoInterceptScope no_intercept;
    for (const auto* record : records_) {
      refill_values(record->index);
      const double left_out = t_left_out;
      const auto begin = Clock::now();
      const bool is_whole = call(*record);
      const double seconds = seconds_since(begin) - (t_left_out - left_out);
      op_seconds_ += seconds;
      if (t_observer) t_observer->replayed(record->index, seconds, is_whole);
    }
    refill_values(std::numeric_limits<int>::max());
  }

  double op_seconds() const { return op_seconds_; }

 private:
  torch::Tensor made(int value, const OpRecord* reader) const {
    const auto place = made_.find(value);
    FLEET_ASSERT(place != made_.end(),
                 format("a replay misses an input of {}", reader ? reader->traits->name : "?"));
    return place->second;
  }

  void used(int value) {
    const auto place = uses_.find(value);
    if (place != uses_.end() && --place->second == 0) made_.erase(value);
  }

  void refill_values(int time) {
    for (; handed_out_ < values_.size() && values_[handed_out_]->origin().time <= time;
         ++handed_out_) {
      auto* kept = values_[handed_out_];
      kept->refill(made(kept->origin().value, nullptr));
      used(kept->origin().value);
    }
  }

  torch::Tensor kept_input(const OpInput& input) const {
    if (input.constant) return input.constant->tensor();
    if (need_.is_kept_elsewhere(input)) return input.kept->get();
    auto* const kept = need_.find_available(input);
    FLEET_ASSERT(kept, "an available value is gone");
    return kept->get();
  }

  torch::Tensor input(const OpRecord& record, const OpInput& input, bool with_graph) {
    const auto tensor = need_.is_kept(input) ? kept_input(input) : made(input.value, &record);
    // The forward has updated the real ones.
    if (input.statistics) return tensor.clone();
    auto alias = tensor.variable_data();
    // Without a graph too: composites choose their kernels by it. matmul, and so linear, folds
    // batches only where a gradient will be wanted, which gives other last bits.
    if (input.requires_grad) {
      if (input.written && with_graph) {
        compat::set_placeholder_grad_fn(alias);
      } else {
        alias.set_requires_grad(true);
      }
    }
    return alias;
  }

  torch::jit::Stack stack_of(const OpRecord& record, bool with_graph,
                             std::vector<torch::Tensor>& tensors) {
    const torch::NoGradGuard no_grad;
    torch::jit::Stack stack(record.arguments.begin(), record.arguments.end());
    for (const auto& list : record.lists) {
      auto& place = stack[static_cast<size_t>(list.argument)];
      if (list.optional) {
        c10::List<std::optional<torch::Tensor>> tensors_of_list;
        tensors_of_list.resize(static_cast<size_t>(list.size));
        place = std::move(tensors_of_list);
      } else {
        c10::List<torch::Tensor> tensors_of_list;
        tensors_of_list.resize(static_cast<size_t>(list.size));
        place = std::move(tensors_of_list);
      }
    }
    for (const auto& entry : record.inputs) {
      tensors.push_back(input(record, entry, with_graph));
      auto& place = stack[static_cast<size_t>(entry.argument)];
      if (entry.element < 0) {
        place = tensors.back();
      } else if (place.isTensorList()) {
        place.toTensorList().set(static_cast<size_t>(entry.element), tensors.back());
      } else {
        place.toOptionalTensorList().set(static_cast<size_t>(entry.element), tensors.back());
      }
    }
    return stack;
  }

  // False when it ended early.
  bool call(const OpRecord& record) {
    const auto asked = saves_.find(record.index);
    const bool wants_saves = asked != saves_.end();
    const bool wants_results =
        record.traits->writes ||
        std::ranges::any_of(record.outputs, [&](const auto& o) { return uses_left(o.value); });
    // Some ops return more where a gradient will be asked for: the workspace of an LSTM.
    const bool may_return_more = record.outputs.size() > 1 && !record.traits->is_view;
    const bool with_graph =
        (wants_saves || may_return_more) && record.state.grad_mode() && !record.mask;
    std::vector<torch::Tensor> tensors;
    auto stack = stack_of(record, with_graph, tensors);
    // The stack holds them now; the op may free its inputs as early as in the forward.
    for (const auto& input : record.inputs) {
      if (!need_.is_kept(input)) used(input.value);
    }
    if (record.traits->writes) copy_before_write(record, tensors);
    ++g_totals.ops;
    if (record.mask) {
      call_dropout(record, stack, wants_results, wants_saves ? &asked->second : nullptr);
    } else {
      Capture capture(record.saves, wants_saves && !wants_results && may_be_stopped(record));
      if (wants_saves) {
        for (auto* kept : asked->second) capture.want(kept);
      }
      const bool finished = record.rng_state ? call_with_rng(record, stack, with_graph, capture)
                                             : call_libtorch(record, stack, with_graph, capture);
      if (!finished) return false;
    }
    remember(record, stack, tensors);
    return true;
  }

  // Values that were refilled for other replays, and share a storage that this op writes to.
  void copy_before_write(const OpRecord& record, const std::vector<torch::Tensor>& tensors) const {
    for (size_t i = 0; i < record.inputs.size(); ++i) {
      if (!record.inputs[i].written || !tensors[i].has_storage()) continue;
      for (size_t k = 0; k < handed_out_; ++k) {
        auto* kept = values_[k];
        if (kept->is_replay_input() && kept->is_resident() &&
            kept->tensor().is_alias_of(tensors[i])) {
          kept->copy_to_own_memory();
        }
      }
    }
  }

  // False when it ended early.
  static bool call_libtorch(const OpRecord& record, torch::jit::Stack& stack, bool with_graph,
                            Capture& capture) {
    bool finished = true;
    {
      const compat::CallStateScope state(record.state, with_graph);
      const compat::ObserverScope observers(nullptr, with_graph ? &capture : nullptr);
      try {
        record.op->callBoxed(&stack);
      } catch (const StopOp&) {
        finished = false;
        ++g_totals.stopped_early;
      }
    }
    if (finished && with_graph && capture.seen() != record.saves) {
      throw Error(
          "recompute",
          format("{} saved {} tensors for backward when it was replayed, and {} in the forward",
                 record.traits->name, capture.seen(), record.saves),
          kHiddenState);
    }
    capture.hand_out(record);
    return finished;
  }

  // An op that uses random numbers must end in the same rng state as in the forward. Otherwise
  // another thread used the generator meanwhile, then or now, and the results differ.
  static bool call_with_rng(const OpRecord& record, torch::jit::Stack& stack, bool with_graph,
                            Capture& capture) {
    const auto arguments = stack;
    std::optional<RngReplay> again(std::in_place, *record.rng_state);
    const bool finished = call_libtorch(record, stack, with_graph, capture);
    bool is_same = record.rng_state->is_at_end();
    if (!is_same && finished) is_same = !record.rng_state->has_advanced();  // it uses none
    if (!is_same && !finished) {
      // It may use more behind the last wanted tensor, where it was stopped.
      again.reset();
      again.emplace(*record.rng_state);
      auto once_more = arguments;
      Capture nothing(record.saves, /*stop_after_last=*/false);
      call_libtorch(record, once_more, with_graph, nothing);
      is_same = record.rng_state->is_at_end();
    }
    if (is_same) return finished;
    throw Error(
        "recompute",
        format("{} got other random numbers when it was replayed: another thread used "
               "the same generator while it ran",
               record.traits->name),
        format("give that thread a generator of its own, or keep the results of this op with "
               "memory::never_replay({{\"{}\"}})",
               record.traits->name));
  }

  // What aten::dropout computes, with the mask from its bits.
  static void call_dropout(const OpRecord& record, torch::jit::Stack& stack, bool wants_result,
                           const std::vector<KeptValue*>* asked) {
    const compat::CallStateScope state(record.state, /*grad_mode=*/false);
    const auto mask = record.mask->mask();
    if (asked) {
      for (auto* kept : *asked) kept->refill(mask);
    }
    torch::Tensor result;
    if (wants_result) result = stack[0].toTensor() * mask;
    stack.assign(1, result);
  }

  void remember(const OpRecord& record, const torch::jit::Stack& stack,
                const std::vector<torch::Tensor>& tensors) {
    // In-place ops can change the shape of what they write to (t_, squeeze_).
    for (size_t i = 0; i < record.inputs.size(); ++i) {
      const auto& input = record.inputs[i];
      if (input.written && uses_left(input.value)) made_[input.value] = tensors[i].variable_data();
    }
    size_t n = 0;
    const auto result = [&](const torch::Tensor& tensor) {
      FLEET_ASSERT(n < record.outputs.size(), "a replayed op has more results than in the forward");
      const auto& output = record.outputs[n++];
      if (tensor.defined()) check_same(record, output, tensor);
      const int value = output.value;
      if (value >= 0 && tensor.defined() && uses_left(value)) made_[value] = tensor.variable_data();
    };
    for (const auto& entry : stack) {
      if (entry.isTensor()) {
        result(entry.toTensor());
      } else if (entry.isTensorList()) {
        for (const auto& tensor : entry.toTensorVector()) result(tensor);
      }
    }
  }

  static void check_same(const OpRecord& record, const OpOutput& output,
                         const torch::Tensor& tensor) {
    if (tensor.numel() == output.numel && tensor.scalar_type() == output.dtype) return;
    throw Error(
        "recompute",
        format("{} returned {} elements of {} when it was replayed, and {} of {} in the forward",
               record.traits->name, tensor.numel(), c10::toString(tensor.scalar_type()),
               output.numel, c10::toString(output.dtype)),
        kHiddenState);
  }

  bool uses_left(int value) const {
    const auto place = uses_.find(value);
    return place != uses_.end() && place->second > 0;
  }

  const ReplayNeed& need_;
  std::vector<const OpRecord*> records_;
  std::vector<KeptValue*> values_;
  size_t handed_out_ = 0;
  double op_seconds_ = 0;
  std::unordered_map<int, std::vector<KeptValue*>> saves_;  // by op
  std::unordered_map<int, int> uses_;                       // by value, still to come
  std::unordered_map<int, torch::Tensor> made_;
};

}  // namespace

ReplayObserver* ReplayObserver::exchange(ReplayObserver* observer) {
  return std::exchange(t_observer, observer);
}

void replay(const ReplayNeed& needed, const std::vector<std::shared_ptr<KeptValue>>& wanted,
            Clock::time_point began) {
  const double left_out = t_left_out;
  Replay replay(needed, wanted);
  replay.run();
  ++g_totals.recomputations;
  const double whole = seconds_since(began);
  const double seconds = whole - (t_left_out - left_out);
  t_left_out = left_out + whole;
  g_totals.nanoseconds += static_cast<int64_t>(seconds * 1e9);
  if (t_observer) t_observer->recomputed(seconds - replay.op_seconds());
}

void leave_out_of_replay(double seconds) { t_left_out += seconds; }

ReplayTotals replay_totals() {
  return {.recomputations = g_totals.recomputations,
          .ops = g_totals.ops,
          .stopped_early = g_totals.stopped_early,
          .seconds = static_cast<double>(g_totals.nanoseconds) * 1e-9};
}

}  // namespace fleet::memory
