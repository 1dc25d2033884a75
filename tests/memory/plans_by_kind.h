// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fleet/memory/plan/planner.h"

namespace fleet::testing {

/// Plans that recompute the results of one kind of op selectively, by name: in one kept segment,
/// and in about `stages` segments of which every second is dropped.
inline std::vector<std::pair<std::string, memory::Plan>> plans_by_kind(
    const memory::StepProfile& profile, int stages) {
  std::map<std::string, std::vector<size_t>> kinds;
  for (size_t k = 0; k < profile.ops.size(); ++k) kinds[profile.ops[k].name].push_back(k);
  auto dropped = memory::keep_everything(profile);
  dropped.segments.clear();
  for (const int cut : memory::find_cuts(profile, stages)) {
    dropped.segments.push_back({.first_op = cut, .is_dropped = dropped.segments.size() % 2 == 0});
  }
  std::vector<std::pair<std::string, memory::Plan>> plans;
  for (const auto& [name, ops] : kinds) {
    auto kept = memory::keep_everything(profile);
    auto in_segments = dropped;
    for (const auto k : ops) kept.recomputed[k] = in_segments.recomputed[k] = 1;
    plans.emplace_back(name, std::move(kept));
    plans.emplace_back(name + ", dropped", std::move(in_segments));
  }
  return plans;
}

}  // namespace fleet::testing
