#include "fleet/memory/region.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/seconds_since.h"
#include "fleet/memory/replay_rules.h"

namespace fleet::memory {
namespace {

/// Ends a replayed op inside autograd once the last tensor it owes has been seen.
struct StopOp {};

/// Takes the tensors that autograd saves while an op is replayed.
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

  int seen() const { return seen_; }

  /// To whoever wanted them; a tensor of another shape or type than at first is a mistake.
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

/// Puts generators back to where they were before a replay.
class Generators {
 public:
  Generators() { before_.push_back(GeneratorState::of_default()); }
  ~Generators() {
    for (const auto& state : before_) state.restore();
  }
  Generators(const Generators&) = delete;
  Generators& operator=(const Generators&) = delete;

  void set(const GeneratorState& state) {
    const bool known = std::ranges::any_of(
        before_, [&](const GeneratorState& s) { return s.generator() == state.generator(); });
    if (!known) before_.emplace_back(state.generator());
    state.restore();
  }

 private:
  std::vector<GeneratorState> before_;
};

struct AtomicTotals {
  std::atomic<int64_t> rebuilds{0}, ops{0}, stopped_early{0}, nanoseconds{0};
};
AtomicTotals g_totals;
std::atomic<int64_t> g_alive{0};
thread_local ReplayListener* t_listener = nullptr;

using Clock = std::chrono::steady_clock;

// What replays brought back goes at the end of a backward at the latest: with retain_graph nobody
// else would let go of it. By thread: others may be in the middle of theirs.
class Rebuilt {
 public:
  static Rebuilt& of_this_thread() {
    static const bool listening = [] {
      compat::on_backward_end([] { of_this_thread().give_up(); });
      return true;
    }();
    (void)listening;
    thread_local Rebuilt rebuilt;
    return rebuilt;
  }
  void add(const std::shared_ptr<KeptValue>& kept) { kept_.push_back(kept); }

 private:
  void give_up() {
    for (const auto& entry : kept_) {
      if (const auto kept = entry.lock()) kept->give_up_rebuilt();
    }
    kept_.clear();
  }
  std::vector<std::weak_ptr<KeptValue>> kept_;
};

}  // namespace

ReplayListener* ReplayListener::exchange(ReplayListener* listener) {
  return std::exchange(t_listener, listener);
}

// Which ops a replay must call to make some values again.
class Region::Need {
 public:
  explicit Need(const Region& region, const std::vector<std::shared_ptr<OpRecord>>& records)
      : region_(region), records_(records), state_(records.size(), State::kUnknown) {}

  // A value that is at hand, so that nothing has to be called for it.
  void at_hand(const KeptValue& kept) {
    const auto& origin = kept.origin();
    if (origin.value >= 0 && !origin.is_view) at_hand_.emplace(key(origin.value, origin.version));
  }

  bool possible(const KeptValue& kept) {
    const auto& origin = kept.origin();
    if (origin.value >= 0) return possible_value(origin.value, origin.version, origin.time);
    return origin.op >= 0 && possible_op(origin.op);
  }

  void mark(const KeptValue& kept) {
    const auto& origin = kept.origin();
    if (origin.value >= 0) {
      mark_makers(origin.value, origin.time);
    } else {
      mark_op(origin.op);
    }
  }

  bool is_needed(size_t position) const { return state_[position] == State::kNeeded; }

  /// Where an input comes from: kept somewhere, or made by the replay itself.
  bool is_kept(const OpInput& input) const {
    return is_kept_elsewhere(input) || is_at_hand(input.value, input.version);
  }
  bool is_kept_elsewhere(const OpInput& input) const {
    if (!input.kept) return false;
    const auto owner = input.kept->region();
    // An inner region gave it up and is gone: it is for this one to make.
    if (!owner) return input.kept->is_here() || input.kept->is_away();
    return !region_.contains(owner.get());
  }
  bool is_at_hand(int value, uint32_t version) const {
    return at_hand_.contains(key(value, version));
  }

 private:
  enum class State : char { kUnknown, kPossible, kImpossible, kNeeded };

  static uint64_t key(int value, uint32_t version) {
    return (static_cast<uint64_t>(value) << 32U) | version;
  }

  int position(int op) const {
    const auto place = std::ranges::lower_bound(records_, op, {},
                                                [](const auto& record) { return record->index; });
    if (place == records_.end() || (*place)->index != op) return -1;
    return static_cast<int>(place - records_.begin());
  }

  bool possible_value(int value, uint32_t version, int time) {
    if (is_at_hand(value, version)) return true;
    const auto& entry = region_.ledger_->values[static_cast<size_t>(value)];
    if (entry.producer < 0 || !possible_op(entry.producer)) return false;
    return entry.memory < 0 ||
           std::ranges::all_of(region_.ledger_->writers[static_cast<size_t>(entry.memory)],
                               [&](int writer) { return writer >= time || possible_op(writer); });
  }

  bool possible_op(int op) {
    const int at = position(op);
    if (at < 0) return false;
    auto& state = state_[static_cast<size_t>(at)];
    if (state != State::kUnknown) return state != State::kImpossible;
    const auto& record = *records_[static_cast<size_t>(at)];
    const bool possible =
        record.can_replay && std::ranges::all_of(record.inputs, [&](const OpInput& input) {
          return is_kept(input) || possible_value(input.value, input.version, record.index);
        });
    state = possible ? State::kPossible : State::kImpossible;
    return possible;
  }

  void mark_value(int value, uint32_t version, int time) {
    if (!is_at_hand(value, version)) mark_makers(value, time);
  }

  void mark_makers(int value, int time) {
    const auto& entry = region_.ledger_->values[static_cast<size_t>(value)];
    mark_op(entry.producer);
    if (entry.memory < 0) return;
    for (const int writer : region_.ledger_->writers[static_cast<size_t>(entry.memory)]) {
      if (writer < time) mark_op(writer);
    }
  }

  void mark_op(int op) {
    const int at = position(op);
    FLEET_ASSERT(at >= 0, "an op that a replay needs was not kept");
    auto& state = state_[static_cast<size_t>(at)];
    if (state == State::kNeeded) return;
    state = State::kNeeded;
    const auto& record = *records_[static_cast<size_t>(at)];
    for (const auto& input : record.inputs) {
      if (!is_kept(input)) mark_value(input.value, input.version, record.index);
    }
  }

  const Region& region_;
  const std::vector<std::shared_ptr<OpRecord>>& records_;
  std::vector<State> state_;
  std::unordered_set<uint64_t> at_hand_;
};

// Calls the needed ops again, in their order, and hands out what they make.
class Region::Replay {
 public:
  Replay(Region& region, const Need& need, std::vector<std::shared_ptr<KeptValue>> wanted,
         std::vector<std::shared_ptr<KeptValue>> at_hand)
      : region_(region), need_(need), at_hand_(std::move(at_hand)) {
    for (const auto& kept : wanted) {
      if (kept->origin().value >= 0) {
        values_.push_back(kept.get());
        ++uses_[kept->origin().value];
      } else {
        saves_[kept->origin().op].push_back(kept.get());
      }
    }
    std::ranges::stable_sort(values_, {}, [](const KeptValue* k) { return k->origin().time; });
    for_each_needed([&](const OpRecord& record) {
      for (const auto& input : record.inputs) {
        if (!need_.is_kept(input)) ++uses_[input.value];
      }
    });
    owners_ = std::move(wanted);
  }

  void run() {
    const compat::NoInterceptScope engine;
    Generators generators;
    for_each_needed([&](const OpRecord& record) {
      hand_out_values(record.index);
      const auto begin = Clock::now();
      call(record, generators);
      if (t_listener) t_listener->replayed(record.index, seconds_since(begin));
    });
    hand_out_values(std::numeric_limits<int>::max());
  }

 private:
  template <typename F>
  void for_each_needed(F&& f) {
    for (size_t i = 0; i < region_.records_.size(); ++i) {
      if (need_.is_needed(i)) f(*region_.records_[i]);
    }
  }

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

  void hand_out_values(int time) {
    for (; handed_out_ < values_.size() && values_[handed_out_]->origin().time <= time;
         ++handed_out_) {
      auto* kept = values_[handed_out_];
      kept->refill(made(kept->origin().value, nullptr));
      used(kept->origin().value);
    }
  }

  torch::Tensor kept_input(const OpInput& input) const {
    if (need_.is_kept_elsewhere(input)) return input.kept->get();
    for (const auto& kept : at_hand_) {
      const auto& origin = kept->origin();
      if (origin.value == input.value && origin.version == input.version && !origin.is_view) {
        return kept->get();
      }
    }
    FLEET_ASSERT(false, "a value at hand is gone");
    return {};
  }

  torch::Tensor input(const OpRecord& record, const OpInput& input, bool with_graph) {
    const auto tensor = need_.is_kept(input) ? kept_input(input) : made(input.value, &record);
    // The first run has moved the real ones.
    if (input.statistics) return tensor.clone();
    auto alias = tensor.variable_data();
    if (input.requires_grad && with_graph) {
      if (input.written) {
        compat::pretend_history(alias);
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

  void call(const OpRecord& record, Generators& generators) {
    const auto asked = saves_.find(record.index);
    const bool wants_saves = asked != saves_.end();
    const bool wants_results =
        record.traits->writes ||
        std::ranges::any_of(record.outputs, [&](const auto& o) { return uses_left(o.value); });
    const bool with_graph = wants_saves && record.state.grad_mode() && !record.mask;
    std::vector<torch::Tensor> tensors;
    auto stack = stack_of(record, with_graph, tensors);
    // The stack holds them now; what nobody needs afterwards should go as early as at first.
    for (const auto& input : record.inputs) {
      if (!need_.is_kept(input)) used(input.value);
    }
    if (record.traits->writes) make_way(record, tensors);
    ++g_totals.ops;
    if (record.mask) {
      call_dropout(record, stack, wants_results, wants_saves ? &asked->second : nullptr);
    } else {
      if (record.draws) generators.set(*record.draws);
      Capture capture(record.saves, wants_saves && !wants_results);
      if (wants_saves) {
        for (auto* kept : asked->second) capture.want(kept);
      }
      if (!call_engine(record, stack, with_graph, capture)) return;  // stopped early
    }
    remember(record, stack, tensors);
  }

  // What was handed out to other replays, and lies in memory that this op writes to.
  void make_way(const OpRecord& record, const std::vector<torch::Tensor>& tensors) const {
    for (size_t i = 0; i < record.inputs.size(); ++i) {
      if (!record.inputs[i].written || !tensors[i].has_storage()) continue;
      for (size_t k = 0; k < handed_out_; ++k) {
        auto* kept = values_[k];
        if (kept->is_source() && kept->is_here() && kept->tensor().is_alias_of(tensors[i])) {
          kept->copy_out();
        }
      }
    }
  }

  // False when it ended early.
  static bool call_engine(const OpRecord& record, torch::jit::Stack& stack, bool with_graph,
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
      throw Error("recompute",
                  format("{} saved {} tensors for backward when it ran again, and {} at first",
                         record.traits->name, capture.seen(), record.saves),
                  kHiddenState);
    }
    capture.hand_out(record);
    return finished;
  }

  // What aten::dropout computes, without drawing.
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
      FLEET_ASSERT(n < record.outputs.size(), "a replayed op has more results than at first");
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
    throw Error("recompute",
                format("{} returned {} elements of {} when it ran again, and {} of {} at first",
                       record.traits->name, tensor.numel(), c10::toString(tensor.scalar_type()),
                       output.numel, c10::toString(output.dtype)),
                kHiddenState);
  }

  bool uses_left(int value) const {
    const auto place = uses_.find(value);
    return place != uses_.end() && place->second > 0;
  }

  Region& region_;
  const Need& need_;
  std::vector<std::shared_ptr<KeptValue>> owners_, at_hand_;
  std::vector<KeptValue*> values_;
  size_t handed_out_ = 0;
  std::unordered_map<int, std::vector<KeptValue*>> saves_;  // by op
  std::unordered_map<int, int> uses_;                       // by value, still to come
  std::unordered_map<int, torch::Tensor> made_;
};

Region::Region(std::shared_ptr<Region> parent, std::shared_ptr<const Ledger> ledger, int first_op)
    : parent_(std::move(parent)),
      ledger_(std::move(ledger)),
      first_op_(first_op),
      depth_(parent_ ? parent_->depth_ + 1 : 0) {
  ++g_alive;
}

Region::~Region() { --g_alive; }

int64_t Region::alive() { return g_alive; }

bool Region::contains(const Region* other) const {
  while (other && other->depth_ > depth_) other = other->parent_.get();
  return other == this;
}

Region* Region::common(Region* a, Region* b) {
  while (a != b) {
    auto*& deeper = a->depth_ >= b->depth_ ? a : b;
    deeper = deeper->parent_.get();
  }
  return a;
}

void Region::add(const std::shared_ptr<KeptValue>& kept) {
  kept->set_region(shared_from_this());
  members_.push_back(kept);
}

std::vector<std::shared_ptr<KeptValue>> Region::members() {
  std::vector<std::shared_ptr<KeptValue>> living;
  for (const auto& entry : members_) {
    auto kept = entry.lock();
    // It may have gone over to a region further out since.
    if (kept && kept->region().get() == this) living.push_back(std::move(kept));
  }
  return living;
}

Region::Dropped Region::drop(const std::vector<std::shared_ptr<OpRecord>>& records) {
  const std::scoped_lock lock(mutex_);
  Dropped result;
  Need need(*this, records);
  const auto record_of = [&](int op) {
    return std::ranges::lower_bound(records, op, {}, [](const auto& r) { return r->index; })->get();
  };
  for (const auto& kept : members()) {
    const auto& origin = kept->origin();
    if (!need.possible(*kept)) {
      FLEET_ASSERT(kept->is_here(), "a value was given up that cannot be made again");
      kept->set_region(nullptr);
      const int op =
          origin.op >= 0 ? origin.op : ledger_->values[static_cast<size_t>(origin.value)].producer;
      result.kept.emplace_back(record_of(op)->traits->name, kept->bytes());
      continue;
    }
    need.mark(*kept);
    if (origin.op >= 0 && kept->is_here()) {
      remember_mask(*record_of(origin.op), origin.save, kept->tensor());
    }
    kept->give_up();
    ++result.values;
    result.bytes += kept->bytes();
  }
  for (size_t i = 0; i < records.size(); ++i) {
    if (need.is_needed(i)) records_.push_back(records[i]);
  }
  return result;
}

void Region::hand_over(Region* outer) {
  const std::scoped_lock lock(mutex_);
  for (const auto& kept : members()) {
    if (outer) {
      outer->add(kept);
    } else {
      kept->set_region(nullptr);
    }
  }
  members_.clear();
}

void Region::remember_mask(OpRecord& record, int save, const torch::Tensor& mask) {
  if (record.traits->name != "aten::dropout" || record.saves != 1 || save != 0) return;
  record.mask = MaskBits::of(mask);
  if (record.mask) record.draws.reset();
}

void Region::rebuild() {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<KeptValue>> wanted, at_hand = sources_;
  for (auto& kept : members()) {
    if (kept->is_intact()) {
      at_hand.push_back(std::move(kept));
    } else if (!kept->is_here()) {
      wanted.push_back(std::move(kept));
    }
  }
  if (wanted.empty()) return;
  const auto begin = Clock::now();
  Need need(*this, records_);
  for (const auto& kept : at_hand) need.at_hand(*kept);
  for (const auto& kept : wanted) need.mark(*kept);
  for (const auto& kept : wanted) Rebuilt::of_this_thread().add(kept);
  Replay(*this, need, wanted, std::move(at_hand)).run();
  ++g_totals.rebuilds;
  const double seconds = seconds_since(begin);
  g_totals.nanoseconds += static_cast<int64_t>(seconds * 1e9);
  if (t_listener) t_listener->rebuilt(seconds);
}

Region::Totals Region::totals() {
  return {.rebuilds = g_totals.rebuilds,
          .ops = g_totals.ops,
          .stopped_early = g_totals.stopped_early,
          .seconds = static_cast<double>(g_totals.nanoseconds) * 1e-9};
}

}  // namespace fleet::memory
