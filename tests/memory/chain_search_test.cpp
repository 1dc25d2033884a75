// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/chain_search.h"

#include <array>
#include <cmath>
#include <functional>
#include <random>

#include <gtest/gtest.h>

namespace fleet::memory {
namespace {

// Every path, one after another.
double by_brute_force(int stages, const std::vector<ChainEdge>& edges, int64_t limit) {
  double best = INFINITY;
  using Bytes = std::array<int64_t, 3>;  // that stay, are offloaded after one more edge, after two
  std::function<void(int, Bytes, double)> go = [&](int stage, Bytes bytes, double seconds) {
    if (stage == stages) best = std::min(best, seconds);
    const auto [held, leaving, lingering] = bytes;
    for (const auto& edge : edges) {
      if (edge.from == stage && held + leaving + lingering + edge.need <= limit) {
        go(edge.to, {held + edge.held, lingering, edge.offloaded}, seconds + edge.seconds);
      }
    }
  };
  go(0, {}, 0);
  return best;
}

std::vector<ChainEdge> random_edges(int stages, int longest, bool some_leave,
                                    std::mt19937& random) {
  std::vector<ChainEdge> edges;
  for (int from = 0; from < stages; ++from) {
    for (int to = from + 1; to <= std::min(stages, from + longest); ++to) {
      for (int option = 0; option < 2; ++option) {
        const int64_t held = random() % 20;
        edges.push_back({.from = from,
                         .to = to,
                         .held = held,
                         .need = held + static_cast<int64_t>(random() % 20),
                         .seconds = static_cast<double>(random() % 100)});
      }
      if (!some_leave) continue;
      auto edge = edges.back();
      edge.offloaded = edge.held - edge.held / 8;
      edge.held -= edge.offloaded;
      edge.seconds += static_cast<double>(random() % 20);
      edges.push_back(edge);
    }
  }
  return edges;
}

TEST(ChainSearch, FindsWhatBruteForceFindsOrNearlyWithOffload) {
  std::mt19937 random(4);
  int feasible = 0, missed = 0, needed = 0;
  for (int round = 0; round < 1000; ++round) {
    const int stages = 5 + static_cast<int>(random() % 3);
    auto edges = random_edges(stages, /*longest=*/2, /*some_leave=*/true, random);
    const int64_t limit = 30 + static_cast<int64_t>(random() % 40);
    const double best = by_brute_force(stages, edges, limit);
    const auto path = search_chain(stages, edges, limit);
    if (!std::isfinite(best)) {
      ASSERT_FALSE(path.is_feasible);
      continue;
    }
    ++feasible;
    if (!path.is_feasible || path.seconds > best) ++missed;
    if (path.is_feasible) {
      ASSERT_GE(path.seconds, best);
      ASSERT_LE(path.peak, limit);
    }
    std::erase_if(edges, [](const ChainEdge& edge) { return edge.offloaded > 0; });
    if (best < by_brute_force(stages, edges, limit)) ++needed;
  }
  EXPECT_GT(feasible, 500);
  EXPECT_GT(needed, 100);
  EXPECT_LE(missed * 40, feasible);
}

TEST(ChainSearch, FindsWhatBruteForceFinds) {
  std::mt19937 random(3);
  int feasible = 0;
  for (int round = 0; round < 3000; ++round) {
    const int stages = 1 + static_cast<int>(random() % 7);
    const auto edges = random_edges(stages, stages, /*some_leave=*/false, random);
    const int64_t limit = 5 + static_cast<int64_t>(random() % 60);
    const double best = by_brute_force(stages, edges, limit);
    const auto path = search_chain(stages, edges, limit);
    ASSERT_EQ(path.is_feasible, std::isfinite(best));
    if (!path.is_feasible) continue;
    ++feasible;
    ASSERT_EQ(path.seconds, best);
    ASSERT_LE(path.peak, limit);
    int64_t held = 0;
    int stage = 0;
    double seconds = 0;
    for (const int e : path.edges) {
      const auto& edge = edges[static_cast<size_t>(e)];
      ASSERT_EQ(edge.from, stage);
      ASSERT_LE(held + edge.need, limit);
      held += edge.held;
      seconds += edge.seconds;
      stage = edge.to;
    }
    ASSERT_EQ(stage, stages);
    ASSERT_EQ(seconds, path.seconds);
    // With few labels it may be slower, and never takes more.
    const auto coarse = search_chain(stages, edges, limit, /*max_labels=*/3);
    if (coarse.is_feasible) {
      ASSERT_LE(coarse.peak, limit);
      ASSERT_GE(coarse.seconds, path.seconds);
    }
  }
  EXPECT_GT(feasible, 500);
}

// Thousands of paths lead to a stage where bytes are traded for time: only some are followed.
TEST(ChainSearch, LosesLittleWhereManyPathsLeadToAStage) {
  constexpr int kStages = 24, kLongest = 6;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform;
  for (int round = 0; round < 5; ++round) {
    std::vector<ChainEdge> edges;
    for (int from = 0; from < kStages; ++from) {
      for (int to = from + 1; to <= std::min(kStages, from + kLongest); ++to) {
        for (int option = 0; option < 3; ++option) {
          const double evicted = uniform(random), length = to - from;
          const auto held = static_cast<int64_t>(1e4 * length * (1 - evicted));
          edges.push_back({.from = from,
                           .to = to,
                           .held = held,
                           .need = held + 5000,
                           .seconds = length * evicted * evicted * (0.8 + 0.4 * uniform(random))});
        }
      }
    }
    const auto limit = static_cast<int64_t>(1e4 * kStages * 0.4);
    const auto exact = search_chain(kStages, edges, limit, /*max_labels=*/1'000'000);
    const auto few = search_chain(kStages, edges, limit, /*max_labels=*/50);
    ASSERT_TRUE(exact.is_feasible && few.is_feasible);
    EXPECT_LE(few.peak, limit);
    EXPECT_GE(few.seconds, exact.seconds - 1e-9);
    EXPECT_LE(few.seconds, 1.03 * exact.seconds);
  }
}

}  // namespace
}  // namespace fleet::memory
