// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/plan_simulation.h"

#include <algorithm>
#include <numeric>

#include "fleet/memory/replay/recompute_search.h"

namespace fleet::memory {
namespace {

// From differences to totals.
void accumulate(std::vector<int64_t>& changes) {
  std::partial_sum(changes.begin(), changes.end(), changes.begin());
}

}  // namespace

struct PlanSimulation::SelectiveValue {
  int op;          // that saved it, and whose backward reads it
  int64_t bytes;   // of the value
  int64_t height;  // the most that its recomputation takes
};

// What becomes of the blocks that the ops of an interval save, and what that costs.
struct PlanSimulation::Fates {
  explicit Fates(size_t blocks)
      : fate(blocks, Fate::kNone),
        released(blocks, StepProfile::kNever),
        asked(blocks, -1),
        first_save(blocks, -1) {}

  // The backward of op `asks` is the first to need it, that of op `until` the last.
  void hold(int block, int asks, int until) {
    auto& release = released[static_cast<size_t>(block)];
    release = std::min(release, until);
    auto& first = asked[static_cast<size_t>(block)];
    first = std::max(first, asks);
    fate[static_cast<size_t>(block)] = Fate::kHeld;
    touched.push_back(block);
  }

  std::vector<Fate> fate;
  std::vector<int> released;    // by block: held until the backward of this op is over
  std::vector<int> asked;       // by block: the first op whose backward needs it
  std::vector<int> first_save;  // the first op of the interval that saved it
  std::vector<int> touched;
  std::vector<SelectiveValue> selective;
  std::vector<char> replayed;  // by op - begin
  int starts = -1;             // the op whose backward starts the region's replay
  double seconds = 0;
  int64_t mask_bytes = 0;
};

// By op: bytes that are recomputed selectively for its backward, and the most that this takes.
template <typename F>
void PlanSimulation::add_selective(const std::vector<SelectiveValue>& values, int begin, F&& add) {
  for (size_t i = 0; i < values.size();) {
    int64_t bytes = 0, height = 0;
    size_t end = i;
    for (; end < values.size() && values[end].op == values[i].op; ++end) {
      height = std::max(height, bytes + values[end].height);
      bytes += values[end].bytes;
    }
    add(static_cast<size_t>(values[i].op - begin), bytes, height);
    i = end;
  }
}

PlanSimulation::PlanSimulation(const StepProfile& profile, OffloadFile::Speed disk)
    : profile_(profile), offload_(profile, disk) {
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

// The ops from `begin` on. Blocks from before it are kept.
struct PlanSimulation::Graph {
  bool can_replay(int op) const {
    if (op < begin) return false;
    const auto& entry = profile.ops[static_cast<size_t>(op)];
    return entry.can_replay && (entry.is_view || recomputed[static_cast<size_t>(op)]);
  }
  const std::vector<int>& inputs(int op) const {
    return profile.ops[static_cast<size_t>(op)].reads;
  }
  bool is_available(int block) const {
    const auto fate = fates.fate[static_cast<size_t>(block)];
    return profile.blocks[static_cast<size_t>(block)].made < begin || fate == Fate::kHeld ||
           fate == Fate::kRegion;
  }
  Makers makers(int block) const {
    const auto& entry = profile.blocks[static_cast<size_t>(block)];
    return {.producer = entry.made, .writers = &entry.writers};
  }

  const StepProfile& profile;
  const Fates& fates;
  const std::vector<char>& recomputed;
  int begin;
};

void PlanSimulation::follow(int begin, int end, bool is_dropped,
                            const std::vector<char>& recomputed, Fates& fates) const {
  fates.replayed.assign(static_cast<size_t>(end - begin), 0);
  std::vector<int> region;  // blocks that the region recomputes
  int first_saving = end;
  for (int k = begin; k < end; ++k) {
    const auto& op = profile_.ops[static_cast<size_t>(k)];
    for (const int b : op.saves) {
      const auto& block = profile_.blocks[static_cast<size_t>(b)];
      first_saving = std::min(first_saving, k);
      auto& fate = fates.fate[static_cast<size_t>(b)];
      if (fates.first_save[static_cast<size_t>(b)] < 0) {
        fates.first_save[static_cast<size_t>(b)] = k;
        fates.touched.push_back(b);
      }
      if (block.made < begin || fate == Fate::kHeld) {
        fates.hold(b, k, k);
        continue;
      }
      if (fate == Fate::kSelective) {
        fates.selective.push_back({.op = k, .bytes = block.bytes, .height = block.bytes});
        continue;
      }
      if (fate == Fate::kRegion) {
        fates.starts = k;
        continue;
      }
      const bool comes_from_bits = recomputed[static_cast<size_t>(block.made)] && block.is_mask;
      const Graph graph{profile_, fates, recomputed, begin};
      RecomputeSearch<Graph> search(graph);
      const auto makers = graph.makers(b);
      const bool is_selective = recomputed[static_cast<size_t>(block.made)] && !comes_from_bits &&
                                search.can_recompute(makers, k + 1);
      if (comes_from_bits) {
        fate = Fate::kSelective;
        fates.seconds += profile_.ops[static_cast<size_t>(block.made)].replay_seconds;
        fates.selective.push_back({.op = k, .bytes = block.bytes, .height = block.bytes});
        fates.mask_bytes += StepProfile::bits_of(block);
      } else if (is_selective) {
        search.need(makers, k + 1);
        fate = Fate::kSelective;
        int64_t height = 0;
        for (const int o : search.needed()) {
          const auto& entry = profile_.ops[static_cast<size_t>(o)];
          fates.seconds += entry.replay_seconds;
          height += std::max(entry.made_bytes, entry.transient);
          for (const int r : entry.reads) {
            if (profile_.blocks[static_cast<size_t>(r)].made < begin) fates.hold(r, k, k);
          }
        }
        height = std::max(height, block.bytes);
        fates.selective.push_back({.op = k, .bytes = block.bytes, .height = height});
      } else if (is_dropped && op.can_replay) {
        fate = Fate::kRegion;
        fates.starts = k;
        region.push_back(b);
        if (block.is_mask) fates.mask_bytes += StepProfile::bits_of(block);
      } else {
        fates.hold(b, k, k);
      }
    }
  }
  if (region.empty()) return;
  // The ops that the region's replay calls.
  std::vector<int> todo;
  const auto need = [&](int op) {
    if (op < begin || fates.replayed[static_cast<size_t>(op - begin)]) return;
    fates.replayed[static_cast<size_t>(op - begin)] = 1;
    todo.push_back(op);
  };
  for (const int b : region) {
    const auto& block = profile_.blocks[static_cast<size_t>(b)];
    need(block.made);
    for (const int writer : block.writers) {
      if (writer < end) need(writer);
    }
  }
  while (!todo.empty()) {
    const int op = todo.back();
    todo.pop_back();
    const auto& entry = profile_.ops[static_cast<size_t>(op)];
    fates.seconds += entry.replay_seconds;
    for (const int n : entry.needs) {
      if (n >= begin) need(n);
    }
    for (const int r : entry.reads) {
      if (profile_.blocks[static_cast<size_t>(r)].made < begin) {
        fates.hold(r, fates.starts, first_saving);
      }
    }
  }
}

// A block that a region's replay makes is live until its last reader among the replayed ops, or to
// the end if backward needs it. `replay`: differences by op, the end included.
void PlanSimulation::add_to_replay(int block, int begin, const Fates& fates,
                                   std::vector<int64_t>& replay) const {
  const auto& entry = profile_.blocks[static_cast<size_t>(block)];
  const auto n = fates.replayed.size();
  const auto made = static_cast<size_t>(entry.made - begin);
  if (!fates.replayed[made]) return;
  size_t until = fates.fate[static_cast<size_t>(block)] == Fate::kRegion ? n : made + 1;
  for (size_t r = made + 1; r < n && until < n; ++r) {
    if (!fates.replayed[r]) continue;
    const auto& reads = profile_.ops[r + static_cast<size_t>(begin)].reads;
    if (std::ranges::find(reads, block) != reads.end()) until = r + 1;
  }
  replay[made] += entry.bytes;
  replay[until] -= entry.bytes;
}

PlanSimulation::Interval PlanSimulation::interval(int begin, int end, bool is_dropped,
                                                  const std::vector<char>& recomputed) const {
  Fates fates(profile_.blocks.size());
  follow(begin, end, is_dropped, recomputed, fates);
  Interval result{.seconds = fates.seconds};
  const auto n = static_cast<size_t>(end - begin);
  std::vector<int64_t> forward(n + 1, 0), backward(n + 1, 0);
  std::vector<int64_t> replay(n + 1, 0);
  result.held = fates.mask_bytes;
  for (int k = begin; k < end; ++k) {
    for (const int b : profile_.ops[static_cast<size_t>(k)].makes) {
      const auto& block = profile_.blocks[static_cast<size_t>(b)];
      const auto fate = fates.fate[static_cast<size_t>(b)];
      const bool crosses = block.dead > end && last_use_[static_cast<size_t>(b)] >= end;
      const bool held = fate == Fate::kHeld || crosses;
      const auto made = static_cast<size_t>(k - begin);
      if (held) {
        result.held += block.bytes;
        if (offload_.may_offload(b, end)) result.may_offload += block.bytes;
        const int release = fate == Fate::kHeld ? fates.released[static_cast<size_t>(b)] : begin;
        backward[static_cast<size_t>(std::max(release, begin) - begin)] += block.bytes;
      } else if (fate == Fate::kRegion) {
        const int first = fates.first_save[static_cast<size_t>(b)];
        backward[static_cast<size_t>(first - begin)] += block.bytes;
      }
      const auto last =
          held ? n : std::min<size_t>(n, static_cast<size_t>(std::max(block.dead - begin, 0)));
      if (last > made + 1) {
        forward[made + 1] += block.bytes;
        forward[last] -= block.bytes;
      }
      if (!held) add_to_replay(b, begin, fates, replay);
    }
  }
  accumulate(forward);
  accumulate(backward);
  accumulate(replay);
  int64_t height = 0;
  const int64_t at_end = profile_.ops[static_cast<size_t>(end) - 1].gradient_bytes;
  for (size_t i = 0; i < n; ++i) {
    const auto& op = profile_.ops[i + static_cast<size_t>(begin)];
    height = std::max(height, forward[i] + op.transient);
    if (op.has_backward) {
      height = std::max(height, backward[i] + op.gradient_bytes + op.backward_transient);
    }
    if (fates.replayed[i]) {
      height = std::max(height, result.held + replay[i] + at_end +
                                    std::max<int64_t>(op.transient - op.made_bytes, 0));
    }
  }
  add_selective(
      fates.selective, begin, [&](size_t i, int64_t recomputed_bytes, int64_t replay_bytes) {
        const auto& op = profile_.ops[i + static_cast<size_t>(begin)];
        height =
            std::max(height, backward[i] + op.gradient_bytes +
                                 std::max(recomputed_bytes + op.backward_transient, replay_bytes));
      });
  result.need = height;
  if (result.may_offload > 0) {
    double forward_s = 0, backward_s = fates.seconds;
    for (int k = begin; k < end; ++k) {
      forward_s += profile_.ops[static_cast<size_t>(k)].seconds;
      backward_s += profile_.ops[static_cast<size_t>(k)].backward_seconds;
    }
    result.offload_seconds = offload_.stall_seconds(result.may_offload, forward_s, backward_s) +
                             offload_.lost_seconds(result.may_offload);
  }
  return result;
}

PlanSimulation::Prediction PlanSimulation::predict(const Plan& plan) const {
  const auto n = profile_.ops.size();
  Prediction result;
  result.seconds = profile_.plain_seconds();
  std::vector<int64_t> backward(n + 1, 0), extra(n + 1, 0);
  std::vector<int64_t> replay_height(n + 1, 0);  // at the op whose backward starts a replay
  std::vector<int64_t> change_forward(n + 2, 0), change_backward(n + 2, 0);
  std::vector<int> held_until(profile_.blocks.size(), StepProfile::kNever);
  std::vector<int> asked(profile_.blocks.size(), -1);
  std::vector<int> input_until(profile_.blocks.size(), 0);
  std::vector<int> first_saver(profile_.blocks.size(), -1), last_saver(profile_.blocks.size(), -1);
  std::vector<double> replay_seconds(n, 0);
  const auto bytes = [&](int b) { return profile_.blocks[static_cast<size_t>(b)].bytes; };

  struct Replayed {
    int begin, end;
    Fates fates;
  };
  std::vector<Replayed> regions;
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const int begin = plan.segments[s].first_op;
    const int end =
        s + 1 < plan.segments.size() ? plan.segments[s + 1].first_op : static_cast<int>(n);
    regions.push_back({begin, end, Fates(profile_.blocks.size())});
    auto& fates = regions.back().fates;
    follow(begin, end, plan.segments[s].is_dropped, plan.recomputed, fates);
    // Blocks from before stay until the segment ends: they may be replay inputs.
    for (int k = begin; k < end; ++k) {
      const auto& op = profile_.ops[static_cast<size_t>(k)];
      const bool may_be_called_again =
          plan.segments[s].is_dropped || op.is_view || plan.recomputed[static_cast<size_t>(k)];
      if (!op.can_replay || !may_be_called_again) continue;
      for (const int b : op.reads) {
        const auto i = static_cast<size_t>(b);
        if (profile_.blocks[i].made >= begin) continue;
        input_until[i] = end;
        if (first_saver[i] < 0) continue;
        // Its own segment does not recompute a replay input of a later one.
        held_until[i] = std::min(held_until[i], first_saver[i]);
        asked[i] = std::max(asked[i], last_saver[i]);
      }
    }
    for (int k = begin; k < end; ++k) {
      for (const int b : profile_.ops[static_cast<size_t>(k)].saves) {
        const auto i = static_cast<size_t>(b);
        if (first_saver[i] < 0) first_saver[i] = k;
        last_saver[i] = k;
      }
    }
    result.seconds += fates.seconds;
    if (fates.starts >= 0) replay_seconds[static_cast<size_t>(fates.starts)] += fates.seconds;
    change_forward[static_cast<size_t>(end)] += fates.mask_bytes;
    change_backward[static_cast<size_t>(begin)] += fates.mask_bytes;
    for (const int b : fates.touched) {
      if (fates.fate[static_cast<size_t>(b)] != Fate::kHeld) continue;
      auto& until = held_until[static_cast<size_t>(b)];
      until = std::min(until, fates.released[static_cast<size_t>(b)]);
      auto& first = asked[static_cast<size_t>(b)];
      first = std::max(first, fates.asked[static_cast<size_t>(b)]);
    }
  }
  // What a later segment holds is available in the segment that made it, too.
  for (const auto& region : regions) {
    for (const int b : region.fates.touched) {
      auto& until = held_until[static_cast<size_t>(b)];
      const int saved = region.fates.first_save[static_cast<size_t>(b)];
      if (until != StepProfile::kNever && saved >= 0) until = std::min(until, saved);
    }
  }
  for (size_t b = 0; b < profile_.blocks.size(); ++b) {
    const auto& block = profile_.blocks[b];
    const bool is_held = held_until[b] != StepProfile::kNever;
    const auto end =
        is_held ? n : std::min(n, static_cast<size_t>(std::max(block.dead, input_until[b])));
    if (end > static_cast<size_t>(block.made) + 1) {
      change_forward[static_cast<size_t>(block.made) + 1] += block.bytes;
      change_forward[end] -= block.bytes;
    }
    if (is_held) change_backward[static_cast<size_t>(held_until[b])] += block.bytes;
  }
  const auto waves = offload_.waves_of(plan, held_until, asked);
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
  for (const auto& region : regions) {
    const auto begin = static_cast<size_t>(region.begin), end = static_cast<size_t>(region.end);
    if (begin == end) continue;
    std::vector<int64_t> replay(end - begin + 1, 0);
    int starts = -1;
    for (size_t k = begin; k < end; ++k) {
      const auto& op = profile_.ops[k];
      bool saves_region = false;
      for (const int b : op.saves)
        saves_region |= region.fates.fate[static_cast<size_t>(b)] == Fate::kRegion;
      if (saves_region) starts = static_cast<int>(k);
      for (const int b : op.makes) {
        if (held_until[static_cast<size_t>(b)] != StepProfile::kNever) continue;
        const bool captured = region.fates.fate[static_cast<size_t>(b)] == Fate::kRegion;
        if (captured) {
          const auto first = static_cast<size_t>(region.fates.first_save[static_cast<size_t>(b)]);
          extra[first] += bytes(b);
          extra[end] -= bytes(b);
        }
        add_to_replay(b, region.begin, region.fates, replay);
      }
    }
    if (starts < 0) continue;
    accumulate(replay);
    int64_t height = 0;
    for (size_t k = begin; k < end; ++k) {
      if (!region.fates.replayed[k - begin]) continue;
      const auto& op = profile_.ops[k];
      height =
          std::max(height, replay[k - begin] + std::max<int64_t>(op.transient - op.made_bytes, 0));
    }
    replay_height[static_cast<size_t>(starts)] = height;
  }
  accumulate(change_forward);
  accumulate(change_backward);
  accumulate(extra);
  for (size_t k = 0; k < n; ++k) {
    result.forward.push_back(profile_.base + change_forward[k] + profile_.ops[k].transient);
  }
  for (size_t k = 0; k < n; ++k) {
    const auto& op = profile_.ops[k];
    const auto here = profile_.base + change_backward[k];
    auto height = here + extra[k];
    if (op.has_backward) height += op.gradient_bytes + op.backward_transient;
    height = std::max(height, here + op.gradient_bytes + replay_height[k]);
    backward[k] = height;
  }
  for (const auto& region : regions) {
    add_selective(
        region.fates.selective, 0, [&](size_t k, int64_t recomputed_bytes, int64_t replay_bytes) {
          const auto& op = profile_.ops[k];
          backward[k] = std::max(
              backward[k], profile_.base + change_backward[k] + extra[k] + op.gradient_bytes +
                               std::max(recomputed_bytes + op.backward_transient, replay_bytes));
        });
  }
  result.backward.assign(backward.rbegin() + 1, backward.rend());
  for (const auto height : result.forward) result.peak = std::max(result.peak, height);
  for (const auto height : result.backward) result.peak = std::max(result.peak, height);
  return result;
}

}  // namespace fleet::memory
