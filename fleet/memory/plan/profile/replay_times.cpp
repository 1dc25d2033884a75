// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/replay_times.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "fleet/memory/plan/profile/equal_ops.h"

namespace fleet::memory {
namespace {

constexpr size_t kEnoughSamples = 3;  // of fewer one may have been disturbed
constexpr double kMaxRatio = 4;       // beyond, the clock was disturbed

}  // namespace

void ReplayTimes::replayed(int op, double seconds, bool is_whole) {
  seconds_ += seconds;
  auto& times = by_op_[op];
  if (times.are_whole && !is_whole) return;
  if (is_whole && !times.are_whole) times = {.are_whole = true};
  times.seconds += seconds;
  ++times.count;
}

void ReplayTimes::recomputed(double overhead) {
  overheads_.push_back(overhead);
  seconds_ += overhead;
}

void ReplayTimes::write_into(StepProfile& profile, double StepProfile::Op::*time) const {
  std::vector<double> all;
  std::unordered_map<std::string_view, std::vector<double>> by_name;
  for (const auto& [number, times] : by_op_) {
    if (number >= std::ssize(profile.ops)) continue;  // of a longer forward
    const auto& op = profile.ops[static_cast<size_t>(number)];
    if (op.*time <= 0 || !times.are_whole) continue;
    const auto ratio = std::min(times.mean() / (op.*time), kMaxRatio);
    all.push_back(ratio);
    by_name[op.name].push_back(ratio);
  }
  const double ratio_of_all = all.size() < kEnoughSamples ? 1 : median_of(all);
  const auto estimate = [&](const StepProfile::Op& op) {
    const auto ratios = by_name.find(op.name);
    const bool is_known = ratios != by_name.end() && ratios->second.size() >= kEnoughSamples;
    return op.*time * (is_known ? median_of(ratios->second) : ratio_of_all);
  };
  for (const auto& same : equal_ops(profile)) {
    std::vector<double> samples, early;
    for (const size_t i : same) {
      const auto known = by_op_.find(static_cast<int>(i));
      if (known == by_op_.end()) continue;
      (known->second.are_whole ? samples : early).push_back(known->second.mean());
    }
    const bool always_ends_early = samples.empty() && !early.empty();
    if (always_ends_early) samples = std::move(early);
    for (const size_t i : same) {
      auto of_op = samples;
      if (of_op.size() < kEnoughSamples && !always_ends_early)
        of_op.push_back(estimate(profile.ops[i]));
      profile.ops[i].replay_seconds = median_of(std::move(of_op));
    }
  }
  if (!overheads_.empty()) profile.recompute_overhead = median_of(overheads_);
}

}  // namespace fleet::memory
