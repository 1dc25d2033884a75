// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/evictable_value.h"

#include <algorithm>
#include <utility>

namespace fleet::memory {
namespace {

constexpr int64_t kSmallestValue = 32 << 10;  // bytes that are worth it
constexpr size_t kMaxOps = 64;                // ops in a recomputation
constexpr double kDearestReplay = 0.5;        // of a step, in one

// Finds the ops between a value and what is saved.
class Closure {
 public:
  explicit Closure(const StepProfile& profile)
      : profile_(profile), is_saved_(profile.blocks.size(), 0) {
    for (const auto& op : profile.ops) {
      for (const int block : op.saves) is_saved_[static_cast<size_t>(block)] = 1;
    }
  }

  // Empty if it takes an op that cannot be replayed, or too many.
  std::vector<int> of(int op) {
    ops_.clear();
    if (!need(op)) return {};
    double seconds = 0;
    for (size_t i = 0; i < ops_.size(); ++i) {
      const auto& entry = profile_.ops[static_cast<size_t>(ops_[i])];
      seconds += entry.replay_seconds;
      if (ops_.size() > kMaxOps || seconds > kDearestReplay * profile_.plain_seconds()) return {};
      // What it made, saved or not, was written to by these.
      if (!std::ranges::all_of(entry.makes, [&](int block) { return need_writers(block, op); })) {
        return {};
      }
      for (const int block : entry.reads) {
        if (is_saved_[static_cast<size_t>(block)]) continue;
        const auto& read = profile_.blocks[static_cast<size_t>(block)];
        if (!need(read.made) || !need_writers(block, ops_[i])) return {};
      }
    }
    std::ranges::sort(ops_);
    return ops_;
  }

 private:
  bool need(int op) {
    if (std::ranges::find(ops_, op) != ops_.end()) return true;
    if (!profile_.ops[static_cast<size_t>(op)].can_replay) return false;
    ops_.push_back(op);
    return true;
  }
  // Of the value that is asked for, all of them: autograd refuses what was written to later.
  bool need_writers(int block, int reader) {
    const auto& entry = profile_.blocks[static_cast<size_t>(block)];
    return std::ranges::all_of(entry.writers, [&](int writer) {
      const bool is_part = entry.made == reader || writer < reader;
      return !is_part || need(writer);
    });
  }

  const StepProfile& profile_;
  std::vector<char> is_saved_;
  std::vector<int> ops_;
};

}  // namespace

std::vector<EvictableValue> evictable_values(const StepProfile& profile) {
  std::vector<EvictableValue> by_op(profile.ops.size());
  std::vector<char> seen(profile.blocks.size(), 0);
  for (int k = 0; k < static_cast<int>(profile.ops.size()); ++k) {
    for (const int b : profile.ops[static_cast<size_t>(k)].saves) {
      const auto& block = profile.blocks[static_cast<size_t>(b)];
      auto& value = by_op[static_cast<size_t>(block.made)];
      value.last_save = k;
      if (std::exchange(seen[static_cast<size_t>(b)], 1)) continue;
      if (value.saved.empty()) value.first_save = k;
      value.saved.push_back(b);
      value.bytes += block.bytes;
      value.freed = std::max({value.freed, k + 1, block.dead});
    }
  }
  Closure closure(profile);
  std::vector<EvictableValue> values;
  for (size_t k = 0; k < by_op.size(); ++k) {
    auto& value = by_op[k];
    if (value.bytes < kSmallestValue || !profile.ops[k].can_replay) continue;
    value.op = static_cast<int>(k);
    const auto is_mask = [&](int b) { return profile.blocks[static_cast<size_t>(b)].is_mask; };
    if (std::ranges::all_of(value.saved, is_mask)) {  // its bits do
      value.ops = {value.op};
    } else {
      value.ops = closure.of(value.op);
    }
    if (value.ops.empty()) continue;
    value.seconds = profile.recompute_overhead;
    for (const int op : value.ops) {
      value.seconds += profile.ops[static_cast<size_t>(op)].replay_seconds;
    }
    const bool is_called_twice =
        value.saved.size() > 1 && std::ranges::any_of(value.saved, is_mask);
    if (is_called_twice) {
      value.seconds += profile.ops[k].replay_seconds + profile.recompute_overhead;
    }
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace fleet::memory
