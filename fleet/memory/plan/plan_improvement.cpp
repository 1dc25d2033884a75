// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/plan_improvement.h"

#include <algorithm>
#include <utility>

namespace fleet::memory {
namespace {

constexpr int64_t kWork = 800'000;  // simulated ops in one improvement
constexpr size_t kRepairs = 12;     // values that may replace one
constexpr size_t kRepairsOfSegment = 40;
constexpr int kRounds = 4;
constexpr double kSlowest = 2;  // times plain training: rather evict on demand

}  // namespace

// A plan that is being changed.
struct PlanImprovement::State {
  Plan plan;                    // with what the last evaluation predicted
  std::vector<char> is_chosen;  // by value: recomputed selectively
  // Of the last evaluation:
  bool peak_is_in_backward = false;
  int peak_op = 0;
};

PlanImprovement::PlanImprovement(const StepProfile& profile, const PlanSimulation& simulation,
                                 const std::vector<EvictableValue>& values, int64_t budget)
    : profile_(profile), simulation_(simulation), values_(values), budget_(budget) {}

PlanImprovement::State PlanImprovement::state_of(const Plan& plan) {
  State state{.plan = plan};
  for (const auto& value : values_) {
    state.is_chosen.push_back(plan.recomputed[static_cast<size_t>(value.op)]);
  }
  return state;
}

int PlanImprovement::segment_of(const State& state, int op) const {
  const auto& segments = state.plan.segments;
  const auto next = std::ranges::upper_bound(segments, op, {}, &Plan::Segment::first_op);
  return static_cast<int>(next - segments.begin()) - 1;
}

void PlanImprovement::set_recomputed(State& state) const {
  auto& recomputed = state.plan.recomputed;
  std::ranges::fill(recomputed, 0);
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!state.is_chosen[i]) continue;
    const int first =
        state.plan.segments[static_cast<size_t>(segment_of(state, values_[i].op))].first_op;
    for (const int op : values_[i].ops) {
      if (op >= first) recomputed[static_cast<size_t>(op)] = 1;
    }
  }
}

// False once no more simulations are allowed.
bool PlanImprovement::evaluate(State& state) {
  if (work_ <= 0) return false;
  work_ -= static_cast<int64_t>(profile_.ops.size());
  set_recomputed(state);
  const auto prediction = simulation_.predict_into(state.plan);
  const auto highest_backward = std::ranges::max_element(prediction.backward);
  const auto highest_forward = std::ranges::max_element(prediction.forward);
  state.peak_is_in_backward = *highest_backward >= *highest_forward;
  const auto last = static_cast<int>(profile_.ops.size()) - 1;
  state.peak_op = state.peak_is_in_backward
                      ? last - static_cast<int>(highest_backward - prediction.backward.begin())
                      : static_cast<int>(highest_forward - prediction.forward.begin());
  return true;
}

// Whether less is held at the peak if this value is recomputed selectively.
bool PlanImprovement::is_relief(const State& state, const EvictableValue& value) const {
  const auto segment = static_cast<size_t>(segment_of(state, value.op));
  const int peak = state.peak_op;
  if (!state.plan.segments[segment].is_dropped) {
    return state.peak_is_in_backward ? peak > value.last_save : peak >= value.freed;
  }
  // What a segment recomputes is there during its own backward only.
  const int end = segment + 1 < state.plan.segments.size()
                      ? state.plan.segments[segment + 1].first_op
                      : static_cast<int>(profile_.ops.size());
  return state.peak_is_in_backward && peak > value.last_save && peak < end;
}

// Recomputes up to `most` more values, those that free most for their time first, until the plan
// fits.
bool PlanImprovement::fit(State& state, size_t most, std::optional<size_t> without) {
  std::vector<char> is_useless(values_.size(), 0);
  if (without) is_useless[*without] = 1;
  size_t chosen = 0;
  while (state.plan.predicted_peak > budget_) {
    const auto excess = state.plan.predicted_peak - budget_;
    std::vector<size_t> order;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (!state.is_chosen[i] && !is_useless[i] && is_relief(state, values_[i])) order.push_back(i);
    }
    // One that frees more than what is needed has no advantage from that.
    const auto cost = [&](size_t i) {
      return values_[i].seconds / static_cast<double>(std::min(values_[i].bytes, excess));
    };
    std::ranges::sort(order, {}, cost);
    // Many at once while far from the goal.
    std::vector<size_t> now;
    int64_t freed = 0;
    for (const size_t i : order) {
      if (chosen + now.size() >= most || freed >= excess / 2 + 1) break;
      now.push_back(i);
      freed += values_[i].bytes;
    }
    if (now.empty()) return false;
    for (const size_t i : now) state.is_chosen[i] = 1;
    const auto before = state.plan.predicted_peak;
    const int peak_op = state.peak_op;
    const bool was_in_backward = state.peak_is_in_backward;
    if (!evaluate(state) || state.plan.predicted_seconds > kSlowest * profile_.plain_seconds())
      return false;
    chosen += now.size();
    const bool is_elsewhere =
        state.peak_op != peak_op || state.peak_is_in_backward != was_in_backward;
    if (state.plan.predicted_peak < before || is_elsewhere) continue;
    for (const size_t i : now) {
      state.is_chosen[i] = 0;
      is_useless[i] = 1;
    }
    chosen -= now.size();
    if (!evaluate(state)) return false;
  }
  return true;
}

std::vector<size_t> PlanImprovement::by_descending_cost(const State& state) const {
  std::vector<size_t> order;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (state.is_chosen[i]) order.push_back(i);
  }
  std::ranges::sort(order, std::ranges::greater(), [&](size_t i) { return values_[i].seconds; });
  return order;
}

// Segments that need not be recomputed, if some of their values are instead.
bool PlanImprovement::keep_segments(State& state) {
  bool has_improved = false;
  for (size_t s = 0; s < state.plan.segments.size(); ++s) {
    if (!state.plan.segments[s].is_dropped) continue;
    auto other = state;
    other.plan.segments[s].is_dropped = false;
    if (!evaluate(other)) return has_improved;
    if (other.plan.predicted_seconds >= state.plan.predicted_seconds) continue;
    if (!fit(other, kRepairsOfSegment) ||
        other.plan.predicted_seconds >= state.plan.predicted_seconds)
      continue;
    state = std::move(other);
    has_improved = true;
  }
  return has_improved;
}

// One dear value against cheaper ones.
bool PlanImprovement::exchange(State& state) {
  bool has_improved = false;
  for (const size_t i : by_descending_cost(state)) {
    if (!state.is_chosen[i]) continue;
    auto other = state;
    other.is_chosen[i] = 0;
    if (!evaluate(other)) return has_improved;
    if (other.plan.predicted_seconds >= state.plan.predicted_seconds) continue;
    if (!fit(other, kRepairs, i) || other.plan.predicted_seconds >= state.plan.predicted_seconds)
      continue;
    state = std::move(other);
    has_improved = true;
  }
  return has_improved;
}

std::optional<Plan> PlanImprovement::fitted(const Plan& plan) {
  if (plan.predicted_peak <= budget_) return plan;
  work_ = kWork;
  auto state = state_of(plan);
  if (!evaluate(state) || !fit(state, values_.size())) return std::nullopt;
  return state.plan;
}

Plan PlanImprovement::least(const Plan& plan) {
  work_ = kWork;
  auto best = state_of(plan);
  if (!evaluate(best)) return plan;
  // In large steps first, which recompute many values at once.
  for (const int64_t part : {8, 32, 128, 512}) {
    while (true) {
      auto next = best;
      budget_ = best.plan.predicted_peak -
                std::max<int64_t>((best.plan.predicted_peak - profile_.base) / part, 1);
      if (!fit(next, values_.size())) break;
      best = std::move(next);
    }
  }
  return best.plan;
}

std::optional<Plan> PlanImprovement::improve(const Plan& plan) {
  work_ = kWork;
  auto state = state_of(plan);
  const bool fitted_before = plan.predicted_peak <= budget_;
  if (!evaluate(state) || !fit(state, values_.size())) {
    return fitted_before ? std::optional(plan) : std::nullopt;
  }
  for (int round = 0; round < kRounds; ++round) {
    bool has_improved = keep_segments(state);
    has_improved |= exchange(state);
    if (!has_improved) break;
  }
  return fitted_before && plan.predicted_seconds <= state.plan.predicted_seconds ? plan
                                                                                 : state.plan;
}

}  // namespace fleet::memory
