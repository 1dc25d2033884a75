// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/simulation/plan_simulation.h"

#include <algorithm>
#include <numeric>

#include "fleet/core/text/format.h"

namespace fleet::memory {
namespace {

// From differences to totals.
void accumulate(std::vector<int64_t>& changes) {
  std::partial_sum(changes.begin(), changes.end(), changes.begin());
}

// By op: what is recomputed selectively for its backward, and the most that this takes; and what
// stays of it for the backwards of ops before it, as differences.
struct SelectiveBytes {
  explicit SelectiveBytes(size_t ops) : recomputed(ops, 0), height(ops, 0), stays(ops + 1, 0) {}

  template <typename IsLeftOut>
  void add(const SegmentOutcome& outcome, size_t begin, const StepProfile& profile,
           IsLeftOut&& is_left_out) {
    for (const auto& one : outcome.selective) {
      const auto starts = static_cast<size_t>(one.starts) - begin;
      height[starts] = std::max(height[starts], recomputed[starts] + one.height);
      recomputed[starts] += one.bytes;
      for (const auto& value : one.values) {
        if (is_left_out(value.block)) continue;
        const auto bytes = profile.blocks[static_cast<size_t>(value.block)].bytes;
        stays[static_cast<size_t>(value.first_save) - begin] += bytes;
        stays[starts] -= bytes;
      }
    }
  }

  std::vector<int64_t> recomputed, height, stays;
};

constexpr int64_t kKnownOps = 400'000;  // of the segments that are remembered

}  // namespace

PlanSimulation::PlanSimulation(const StepProfile& profile, OffloadFile::Speed disk)
    : profile_(profile), offload_(profile, disk), segments_(profile) {
  const auto ops = profile.ops.size();
  const auto blocks = profile.blocks.size();
  alive_.assign(ops + 2, 0);
  saved_.assign(ops + 1, 0);
  last_use_.assign(blocks, -1);
  std::vector<char> seen(blocks, 0);
  for (size_t k = 0; k < ops; ++k) {
    for (const int b : profile.ops[k].reads)
      last_use_[static_cast<size_t>(b)] = static_cast<int>(k);
    for (const int b : profile.ops[k].saves) {
      last_use_[static_cast<size_t>(b)] = static_cast<int>(k);
      if (!seen[static_cast<size_t>(b)])
        saved_[k + 1] += profile.blocks[static_cast<size_t>(b)].bytes;
      seen[static_cast<size_t>(b)] = 1;
    }
  }
  accumulate(saved_);
  for (const auto& block : profile.blocks) {
    for (const int writer : block.writers) constraints_.constrain(block.made, writer);
    const auto end = std::min<size_t>(static_cast<size_t>(block.dead), ops);
    if (end <= static_cast<size_t>(block.made)) continue;
    alive_[static_cast<size_t>(block.made) + 1] += block.bytes;
    alive_[end] -= block.bytes;
  }
  accumulate(alive_);
}

PlanSimulation::Interval PlanSimulation::interval(int begin, int end, bool is_dropped,
                                                  const std::vector<char>& recomputed) const {
  const auto outcome = segments_.simulate(begin, end, is_dropped, recomputed);
  Interval result{.seconds = outcome.seconds * profile_.graph.backwards};
  const auto n = static_cast<size_t>(end - begin);
  std::vector<int64_t> forward(n + 1, 0), backward(n + 1, 0), replay(n + 1, 0);
  result.held = outcome.mask_bytes;
  const auto crosses = [&](int b) {
    return profile_.blocks[static_cast<size_t>(b)].dead > end &&
           last_use_[static_cast<size_t>(b)] >= end;
  };
  const auto hold = [&](int b, int release) {
    const auto& block = profile_.blocks[static_cast<size_t>(b)];
    result.held += block.bytes;
    if (offload_.may_offload(b, end)) result.may_offload += block.bytes;
    backward[static_cast<size_t>(released_at(std::max(release, begin), begin) - begin)] +=
        block.bytes;
    const auto made = static_cast<size_t>(block.made - begin);
    if (n > made + 1) forward[made + 1] += block.bytes;
    if (n > made + 1) forward[n] -= block.bytes;
  };
  std::vector<int> held;
  for (const auto& entry : outcome.entries) {
    if (profile_.blocks[static_cast<size_t>(entry.block)].made < begin) continue;
    if (entry.decision == SegmentOutcome::Decision::kHeld) {
      held.push_back(entry.block);
      hold(entry.block, entry.released);
    } else if (entry.decision == SegmentOutcome::Decision::kRegion && !crosses(entry.block)) {
      backward[static_cast<size_t>(entry.first_save - begin)] +=
          profile_.blocks[static_cast<size_t>(entry.block)].bytes;
    }
  }
  std::ranges::sort(held);
  const auto is_held = [&](int b) { return std::ranges::binary_search(held, b) || crosses(b); };
  for (int k = begin; k < end; ++k) {
    for (const int b : profile_.ops[static_cast<size_t>(k)].makes) {
      if (std::ranges::binary_search(held, b)) continue;
      if (crosses(b)) {
        hold(b, begin);
        continue;
      }
      const auto& block = profile_.blocks[static_cast<size_t>(b)];
      const auto made = static_cast<size_t>(k - begin);
      const auto last = std::min<size_t>(n, static_cast<size_t>(std::max(block.dead - begin, 0)));
      if (last > made + 1) {
        forward[made + 1] += block.bytes;
        forward[last] -= block.bytes;
      }
    }
  }
  for (const auto& life : outcome.replayed_blocks) {
    if (is_held(life.block)) continue;
    const auto bytes = profile_.blocks[static_cast<size_t>(life.block)].bytes;
    replay[static_cast<size_t>(life.made - begin)] += bytes;
    replay[static_cast<size_t>(life.until - begin)] -= bytes;
  }
  SelectiveBytes selective(n);
  selective.add(outcome, static_cast<size_t>(begin), profile_, is_held);
  accumulate(forward);
  accumulate(backward);
  accumulate(replay);
  accumulate(selective.stays);
  int64_t height = 0;
  const int64_t at_end = profile_.ops[static_cast<size_t>(end) - 1].gradient_bytes;
  for (size_t i = 0; i < n; ++i) {
    const auto& op = profile_.ops[i + static_cast<size_t>(begin)];
    height = std::max(height, forward[i] + op.transient);
    const auto here = backward[i] + selective.stays[i] + op.gradient_bytes;
    if (op.has_backward) height = std::max(height, here + op.backward_transient);
    if (selective.recomputed[i] > 0) {
      height = std::max(height, here + std::max(selective.recomputed[i] + op.backward_transient,
                                                selective.height[i]));
    }
  }
  for (const int k : outcome.replayed) {
    const auto& op = profile_.ops[static_cast<size_t>(k)];
    height = std::max(height, result.held + replay[static_cast<size_t>(k - begin)] + at_end +
                                  op.replay_transient());
  }
  result.need = height;
  if (result.may_offload > 0) {
    double forward_s = 0, backward_s = result.seconds;
    for (int k = begin; k < end; ++k) {
      forward_s += profile_.ops[static_cast<size_t>(k)].seconds;
      backward_s += profile_.ops[static_cast<size_t>(k)].backward_seconds;
    }
    result.offload_seconds = offload_.stall_seconds(result.may_offload, forward_s, backward_s) +
                             offload_.lost_seconds(result.may_offload);
  }
  return result;
}

std::shared_ptr<const SegmentOutcome> PlanSimulation::outcome_of(const Plan& plan,
                                                                 size_t segment) const {
  const int begin = plan.segments[segment].first_op;
  const int end = segment + 1 < plan.segments.size() ? plan.segments[segment + 1].first_op
                                                     : static_cast<int>(profile_.ops.size());
  const bool is_dropped = plan.segments[segment].is_dropped;
  std::string key(plan.recomputed.data() + begin, plan.recomputed.data() + end);
  key += format("{} {}", begin, is_dropped);
  auto& known = known_[key];
  if (known) return known;
  known_ops_ += end - begin;
  if (known_ops_ > kKnownOps) {
    known_.clear();
    known_ops_ = end - begin;
  }
  return known_[key] = std::make_shared<const SegmentOutcome>(
             segments_.simulate(begin, end, is_dropped, plan.recomputed));
}

struct PlanSimulation::Lifetimes {
  explicit Lifetimes(size_t blocks)
      : held_until(blocks, StepProfile::kNever), asked(blocks, -1), input_until(blocks, 0) {}
  bool is_held(int block) const {
    return held_until[static_cast<size_t>(block)] != StepProfile::kNever;
  }

  std::vector<int> held_until;   // by block: the backward of this op is the last to need it
  std::vector<int> asked;        // and that of this op the first
  std::vector<int> input_until;  // this op of the forward: it may be a replay input until then
};

PlanSimulation::Lifetimes PlanSimulation::lifetimes_of(const Outcomes& outcomes) const {
  const auto blocks = profile_.blocks.size();
  Lifetimes lifetimes(blocks);
  std::vector<int> first_saver(blocks, -1), last_saver(blocks, -1);
  for (const auto& outcome : outcomes) {
    // Blocks from before stay until the segment ends: they may be replay inputs.
    for (const int b : outcome->inputs) {
      const auto i = static_cast<size_t>(b);
      lifetimes.input_until[i] = outcome->end;
      if (first_saver[i] < 0) continue;
      // Its own segment does not recompute a replay input of a later one.
      lifetimes.held_until[i] = std::min(lifetimes.held_until[i], first_saver[i]);
      lifetimes.asked[i] = std::max(lifetimes.asked[i], last_saver[i]);
    }
    for (const auto& entry : outcome->entries) {
      const auto i = static_cast<size_t>(entry.block);
      if (entry.first_save >= 0) {
        if (first_saver[i] < 0) first_saver[i] = entry.first_save;
        last_saver[i] = entry.last_save;
      }
      if (entry.decision != SegmentOutcome::Decision::kHeld) continue;
      lifetimes.held_until[i] = std::min(lifetimes.held_until[i], entry.released);
      lifetimes.asked[i] = std::max(lifetimes.asked[i], entry.asked);
    }
  }
  // What a later segment holds is available in the segment that made it, too.
  for (size_t b = 0; b < blocks; ++b) {
    auto& until = lifetimes.held_until[b];
    if (until != StepProfile::kNever && first_saver[b] >= 0) {
      until = std::min(until, first_saver[b]);
    }
  }
  return lifetimes;
}

PlanSimulation::Prediction PlanSimulation::predict_into(Plan& plan) const {
  auto prediction = predict(plan);
  plan.predicted_peak = prediction.peak;
  plan.predicted_seconds = prediction.seconds;
  plan.offloaded_bytes = prediction.offloaded_bytes_total;
  plan.stall_seconds = prediction.stall_seconds;
  return prediction;
}

PlanSimulation::Prediction PlanSimulation::predict(const Plan& plan) const {
  const auto n = profile_.ops.size();
  Prediction result;
  result.seconds = profile_.plain_seconds();
  std::vector<int64_t> extra(n + 1, 0);
  std::vector<int64_t> replay_height(n + 1, 0);  // at the op whose backward starts a replay
  std::vector<int64_t> change_forward(n + 2, 0), change_backward(n + 2, 0);
  std::vector<double> replay_seconds(n, 0);
  const auto bytes = [&](int b) { return profile_.blocks[static_cast<size_t>(b)].bytes; };

  Outcomes outcomes;
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    outcomes.push_back(outcome_of(plan, s));
    const auto& outcome = *outcomes.back();
    result.seconds += outcome.seconds * profile_.graph.backwards;
    if (outcome.starts >= 0) {
      replay_seconds[static_cast<size_t>(outcome.starts)] += outcome.seconds;
    }
    change_forward[static_cast<size_t>(outcome.end)] += outcome.mask_bytes;
    change_backward[static_cast<size_t>(released_at(outcome.begin))] += outcome.mask_bytes;
  }
  const auto lifetimes = lifetimes_of(outcomes);
  for (size_t b = 0; b < profile_.blocks.size(); ++b) {
    const auto& block = profile_.blocks[b];
    const bool is_held = lifetimes.held_until[b] != StepProfile::kNever;
    const auto end =
        is_held ? n
                : std::min(n, static_cast<size_t>(std::max(block.dead, lifetimes.input_until[b])));
    if (end > static_cast<size_t>(block.made) + 1) {
      change_forward[static_cast<size_t>(block.made) + 1] += block.bytes;
      change_forward[end] -= block.bytes;
    }
    if (is_held) {
      change_backward[static_cast<size_t>(released_at(lifetimes.held_until[b]))] += block.bytes;
    }
  }
  const auto waves = offload_.waves_of(plan, lifetimes.held_until, lifetimes.asked);
  for (const auto& wave : waves) {
    result.offloaded_bytes_total += wave.bytes;
    change_forward[static_cast<size_t>(wave.gone)] -= wave.bytes;
    change_forward[n] += wave.bytes;
    change_backward[static_cast<size_t>(wave.comes) + 1] -= wave.bytes;
  }
  result.stall_seconds = offload_.stall_seconds(waves, replay_seconds);
  result.seconds += result.stall_seconds;
  if (result.offloaded_bytes_total > 0)
    result.seconds += offload_.lost_seconds(result.offloaded_bytes_total);
  // Recomputed blocks.
  SelectiveBytes selective(n);
  const auto is_held = [&](int b) { return lifetimes.is_held(b); };
  std::vector<int64_t> replay;
  for (const auto& outcome : outcomes) {
    selective.add(*outcome, 0, profile_, is_held);
    if (outcome->starts < 0) continue;
    const auto begin = static_cast<size_t>(outcome->begin), end = static_cast<size_t>(outcome->end);
    replay.assign(end - begin + 1, 0);
    for (const auto& entry : outcome->entries) {
      if (entry.decision != SegmentOutcome::Decision::kRegion || is_held(entry.block)) continue;
      extra[static_cast<size_t>(entry.first_save)] += bytes(entry.block);
      extra[end] -= bytes(entry.block);
    }
    for (const auto& life : outcome->replayed_blocks) {
      if (is_held(life.block)) continue;
      replay[static_cast<size_t>(life.made) - begin] += bytes(life.block);
      replay[static_cast<size_t>(life.until) - begin] -= bytes(life.block);
    }
    accumulate(replay);
    auto& height = replay_height[static_cast<size_t>(outcome->starts)];
    for (const int k : outcome->replayed) {
      const auto& op = profile_.ops[static_cast<size_t>(k)];
      height = std::max(height, replay[static_cast<size_t>(k) - begin] + op.replay_transient());
    }
  }
  for (auto* const changes : {&change_forward, &change_backward, &extra, &selective.stays}) {
    accumulate(*changes);
  }
  result.forward.reserve(n);
  result.backward.resize(n);
  for (size_t k = 0; k < n; ++k) {
    const auto& op = profile_.ops[k];
    result.forward.push_back(profile_.base + change_forward[k] + op.transient);
    const auto here = profile_.base + change_backward[k] + selective.stays[k];
    auto height = here + extra[k];
    if (op.has_backward) height += op.gradient_bytes + op.backward_transient;
    height = std::max(height, here + op.gradient_bytes + replay_height[k]);
    if (selective.recomputed[k] > 0) {
      height = std::max(height, here + extra[k] + op.gradient_bytes +
                                    std::max(selective.recomputed[k] + op.backward_transient,
                                             selective.height[k]));
    }
    result.backward[n - 1 - k] = height;
    result.peak = std::max({result.peak, result.forward.back(), height});
  }
  return result;
}

}  // namespace fleet::memory
