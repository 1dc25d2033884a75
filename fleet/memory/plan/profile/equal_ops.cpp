// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/equal_ops.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>

namespace fleet::memory {
namespace {

constexpr size_t kEnough = 3;

// Returns by how much the sum fell.
double take_median(StepProfile& profile, const std::vector<size_t>& same,
                   double StepProfile::Op::*time) {
  std::vector<double> times;
  for (const size_t i : same) times.push_back(profile.ops[i].*time);
  const auto sum = std::accumulate(times.begin(), times.end(), 0.0);
  const auto median = median_of(std::move(times));
  for (const size_t i : same) profile.ops[i].*time = median;
  return sum - median * static_cast<double>(same.size());
}

}  // namespace

std::vector<std::vector<size_t>> equal_ops(const StepProfile& profile) {
  using Work = std::tuple<std::string_view, std::string_view, std::string_view, double, double,
                          int64_t, size_t>;
  const auto name = [&](size_t k) -> std::string_view {
    return k < profile.ops.size() ? std::string_view(profile.ops[k].name) : "";
  };
  std::map<Work, std::vector<size_t>> by_work;
  for (size_t i = 0; i < profile.ops.size(); ++i) {
    const auto& op = profile.ops[i];
    const Work work(name(i - 1), op.name, name(i + 1), op.cost.flops, op.cost.bytes, op.made_bytes,
                    op.saves.size());
    by_work[work].push_back(i);
  }
  std::vector<std::vector<size_t>> groups;
  groups.reserve(by_work.size());
  for (auto& [work, same] : by_work) groups.push_back(std::move(same));
  return groups;
}

void share_medians(StepProfile& profile) {
  using Op = StepProfile::Op;
  for (const auto& same : equal_ops(profile)) {
    if (same.size() < kEnough) continue;
    take_median(profile, same, &Op::replay_seconds);
    profile.forward_seconds -= take_median(profile, same, &Op::seconds);
    profile.backward_seconds -= take_median(profile, same, &Op::backward_seconds);
  }
}

double median_of(std::vector<double> numbers) {
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::ranges::nth_element(numbers, middle);
  if (numbers.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(numbers.begin(), middle)) / 2;
}

}  // namespace fleet::memory
