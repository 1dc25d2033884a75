// SPDX-License-Identifier: Apache-2.0
// Plans for small random graphs beside the best of all possible plans, each of which is simulated.

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"

namespace fleet::memory {
namespace {

// Ops that each read one or two earlier results, some of them far back, and save what they read,
// what they return, or neither.
StepProfile random_graph(int ops, std::mt19937& random) {
  StepProfile profile;
  const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int k = 0; k < ops; ++k) {
    StepProfile::Op op;
    op.name = format("op{}", k);
    op.seconds = op.replay_seconds = 1e-3 * (1 + one_of(20));
    op.backward_seconds = 2 * op.seconds;
    const int64_t bytes = (int64_t{64} << 10) * (1 + one_of(8));
    if (k > 0) {
      op.reads.push_back(k - 1);
      if (k > 2 && one_of(3) == 0) op.reads.push_back(one_of(k - 1));
      op.needs = op.reads;
      for (const int block : op.reads) {
        if (one_of(2) == 0) op.saves.push_back(block);
      }
    }
    op.makes.push_back(k);
    if (one_of(2) == 0) op.saves.push_back(k);
    op.made_bytes = op.transient = bytes;
    op.has_backward = !op.saves.empty();
    op.gradient_bytes = op.backward_transient = bytes;
    profile.blocks.push_back({.bytes = bytes, .made = k, .dead = k + 2, .can_offload = true});
    for (const int block : op.reads) {
      auto& dead = profile.blocks[static_cast<size_t>(block)].dead;
      dead = std::max(dead, k + 1);
    }
    profile.forward_seconds += op.seconds;
    profile.backward_seconds += op.backward_seconds;
    profile.ops.push_back(std::move(op));
  }
  return profile;
}

struct Tried {
  int64_t peak;
  double seconds;
};

// All plans: every set of cuts, every set of segments that are recomputed, every set of ops whose
// results are recomputed selectively.
std::vector<Tried> all_plans(const StepProfile& profile, bool with_segments) {
  const PlanSimulation simulation(profile);
  const auto n = profile.ops.size();
  std::vector<Tried> outcomes;
  auto plan = keep_everything(profile);
  for (unsigned cuts = 0; cuts < (with_segments ? 1U << (n - 1) : 1U); ++cuts) {
    std::vector<Plan::Segment> segments(1);
    for (unsigned i = 0; i + 1 < n; ++i) {
      if (cuts >> i & 1U) segments.push_back({.first_op = static_cast<int>(i) + 1});
    }
    for (unsigned dropped = 0; dropped < (with_segments ? 1U << segments.size() : 1U); ++dropped) {
      for (size_t s = 0; s < segments.size(); ++s) segments[s].is_dropped = dropped >> s & 1U;
      plan.segments = segments;
      for (unsigned ops = 0; ops < 1U << n; ++ops) {
        for (size_t k = 0; k < n; ++k) plan.recomputed[k] = static_cast<char>(ops >> k & 1U);
        const auto prediction = simulation.predict(plan);
        outcomes.push_back({prediction.peak, prediction.seconds});
      }
    }
  }
  return outcomes;
}

// How much slower than the best the planner's plan is, in parts of the best, by budget; -1 where it
// found none although there is one.
std::vector<double> gaps(const StepProfile& profile, const std::vector<Tried>& all) {
  const auto least = std::ranges::min(all, {}, &Tried::peak).peak;
  const auto most = keep_everything(profile).predicted_peak;
  std::vector<double> result;
  for (const int64_t share : {0, 15, 30, 50, 75}) {
    const auto budget = least + (most - least) * share / 100;
    double best = INFINITY;
    for (const auto& one : all) {
      if (one.peak <= budget) best = std::min(best, one.seconds);
    }
    const auto plan = make_plan(profile, {.budget = budget});
    if (plan) {
      EXPECT_LE(plan->predicted_peak, budget);
      EXPECT_GE(plan->predicted_seconds, best - 1e-9);
    }
    result.push_back(plan ? plan->predicted_seconds / best - 1 : -1);
  }
  return result;
}

struct Summary {
  int found = 0, missed = 0, optimal = 0;
  double sum = 0, worst = 0;
  void add(const std::vector<double>& gaps) {
    for (const double gap : gaps) {
      if (gap < 0) {
        ++missed;
        continue;
      }
      ++found;
      if (gap < 1e-9) ++optimal;
      sum += gap;
      worst = std::max(worst, gap);
    }
  }
  double mean() const { return sum / std::max(found, 1); }
  std::string text() const {
    return format("{} found, {} of them optimal, {} missed; {:.2f} % slower, {:.2f} % at worst",
                  found, optimal, missed, 100 * mean(), 100 * worst);
  }
};

TEST(PlanOptimum, IsNearlyReachedOnSmallGraphs) {
  std::mt19937 random(3);
  Summary summary;
  for (int graph = 0; graph < 8; ++graph) {
    const auto profile = random_graph(6, random);
    summary.add(gaps(profile, all_plans(profile, /*with_segments=*/true)));
  }
  SCOPED_TRACE(summary.text());
  RecordProperty("gap", summary.text());
  EXPECT_LE(summary.missed, 2);
  EXPECT_LE(summary.mean(), 0.02);
  EXPECT_LE(summary.worst, 0.15);
}

// Larger graphs, beside the best selection of values without segments; the planner may be quicker.
TEST(PlanOptimum, IsNoSlowerThanTheBestSelectionOfValues) {
  std::mt19937 random(5);
  Summary summary;
  for (int graph = 0; graph < 12; ++graph) {
    const auto profile = random_graph(11, random);
    const auto all = all_plans(profile, /*with_segments=*/false);
    const auto least = std::ranges::min(all, {}, &Tried::peak).peak;
    const auto most = keep_everything(profile).predicted_peak;
    for (const int64_t share : {5, 25, 50, 75}) {
      const auto budget = least + (most - least) * share / 100;
      double best = INFINITY;
      for (const auto& one : all) {
        if (one.peak <= budget) best = std::min(best, one.seconds);
      }
      if (best > 2 * profile.plain_seconds()) continue;  // rather evicted on demand
      const auto plan = make_plan(profile, {.budget = budget});
      summary.add({plan ? std::max(plan->predicted_seconds / best - 1, 0.0) : -1});
    }
  }
  SCOPED_TRACE(summary.text());
  RecordProperty("gap", summary.text());
  EXPECT_LE(summary.missed, 1);  // of 48
  EXPECT_LE(summary.mean(), 0.01);
  EXPECT_LE(summary.worst, 0.25);
}

}  // namespace
}  // namespace fleet::memory
