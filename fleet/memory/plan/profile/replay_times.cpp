// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/replay_times.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace fleet::memory {
namespace {

constexpr size_t kEnough = 3;     // replayed ops of a name; below, those of all names count
constexpr double kMostRatio = 4;  // beyond, the clock was disturbed

double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::ranges::nth_element(numbers, middle);
  return *middle;
}

}  // namespace

void ReplayTimes::replayed(int op, double seconds) {
  auto& times = by_op_[op];
  times.seconds += seconds;
  ++times.count;
  seconds_ += seconds;
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
    if (op.*time <= 0) continue;
    const auto ratio = std::min(times.seconds / times.count / (op.*time), kMostRatio);
    all.push_back(ratio);
    by_name[op.name].push_back(ratio);
  }
  const double of_all = all.size() < kEnough ? 1 : median(all);
  std::unordered_map<std::string_view, double> of_name;
  for (const auto& [name, ratios] : by_name) {
    if (ratios.size() >= kEnough) of_name[name] = median(ratios);
  }
  for (size_t i = 0; i < profile.ops.size(); ++i) {
    auto& op = profile.ops[i];
    if (const auto known = by_op_.find(static_cast<int>(i)); known != by_op_.end()) {
      op.replay_seconds = known->second.seconds / known->second.count;
      continue;
    }
    const auto ratio = of_name.find(op.name);
    op.replay_seconds = op.*time * (ratio == of_name.end() ? of_all : ratio->second);
  }
  if (!overheads_.empty()) profile.recompute_overhead = median(overheads_);
}

}  // namespace fleet::memory
