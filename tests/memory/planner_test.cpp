#include "fleet/memory/planner.h"

#include <functional>
#include <random>

#include <gtest/gtest.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/torch.h>

#include "fleet/core/format.h"
#include "fleet/memory/budget_allocator.h"
#include "fleet/memory/chain_search.h"
#include "fleet/memory/plan_simulation.h"

namespace fleet::memory {
namespace {

// Every path, one after another.
double by_brute_force(int stages, const std::vector<ChainEdge>& edges, int64_t limit) {
  double best = INFINITY;
  std::function<void(int, int64_t, double)> go = [&](int stage, int64_t held, double seconds) {
    if (stage == stages) best = std::min(best, seconds);
    for (const auto& edge : edges) {
      if (edge.from == stage && held + edge.need <= limit) {
        go(edge.to, held + edge.held, seconds + edge.seconds);
      }
    }
  };
  go(0, 0, 0);
  return best;
}

TEST(ChainSearch, FindsWhatBruteForceFinds) {
  std::mt19937 random(3);
  int feasible = 0;
  for (int round = 0; round < 3000; ++round) {
    const int stages = 1 + static_cast<int>(random() % 7);
    std::vector<ChainEdge> edges;
    for (int from = 0; from < stages; ++from) {
      for (int to = from + 1; to <= stages; ++to) {
        for (int option = 0; option < 2; ++option) {
          const int64_t held = random() % 20;
          edges.push_back({.from = from,
                           .to = to,
                           .held = held,
                           .need = held + static_cast<int64_t>(random() % 20),
                           .seconds = static_cast<double>(random() % 100)});
        }
      }
    }
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

// A stock encoder, as LibTorch ships it.
class StockEncoder : public ::testing::Test {
 protected:
  StockEncoder() : on_(BudgetAllocator::cpu()) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    const auto layer =
        torch::nn::TransformerEncoderLayerOptions(128, 4).dim_feedforward(512).dropout(0.1);
    encoder_ = torch::nn::TransformerEncoder(
        torch::nn::TransformerEncoderOptions(torch::nn::TransformerEncoderLayer(layer), 8));
    input_ = torch::randn({64, 16, 128});
    for (const auto& parameter : encoder_->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
  }

  torch::Tensor loss() { return encoder_->forward(input_).square().mean(); }

  struct Step {
    int64_t peak = 0;  // above what was there before
    std::vector<torch::Tensor> gradients;
    StepProfile profile;
  };

  Step step(TapePolicy* policy, bool measure = false) {
    torch::manual_seed(2);
    encoder_->zero_grad(/*set_to_none=*/false);
    auto& counter = BudgetAllocator::cpu().counter();
    counter.reset_peaks();
    const auto before = counter.live();
    Step result;
    std::shared_ptr<Profiler> profiler;
    torch::Tensor value;
    if (policy) {
      if (measure) profiler = std::make_shared<Profiler>(counter);
      TapeScope scope(*policy, profiler);
      value = loss();
    } else {
      value = loss();
    }
    value.backward();
    result.peak = counter.peak() - before;
    if (profiler) result.profile = profiler->finish();
    for (const auto& parameter : encoder_->parameters()) {
      result.gradients.push_back(parameter.grad().clone());
    }
    return result;
  }

  static bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
    return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return x.equal(y); });
  }

  BudgetAllocatorScope on_;
  torch::nn::TransformerEncoder encoder_{nullptr};
  torch::Tensor input_;
};

TEST_F(StockEncoder, PlansHoldTheirBudgetAndAreRightAboutTheirPeak) {
  const auto plain = step(nullptr);
  AutomaticCuts lean(1 << 18, 1);
  const auto measured = step(&lean, /*measure=*/true);
  ASSERT_TRUE(equal(measured.gradients, plain.gradients));
  const auto& profile = measured.profile;
  const auto above_base = [&](int64_t peak) { return static_cast<double>(peak - profile.base); };
  const auto everything = keep_everything(profile);
  EXPECT_NEAR(above_base(everything.predicted_peak), static_cast<double>(plain.peak),
              0.02 * static_cast<double>(plain.peak));
  const auto least = least_memory(profile);
  EXPECT_LT(above_base(least.predicted_peak), 0.25 * static_cast<double>(plain.peak));
  EXPECT_FALSE(make_plan(profile, {.budget = least.predicted_peak * 9 / 10}));
  for (const double share : {0.02, 0.1, 0.2, 0.4, 0.6, 0.8}) {
    const auto budget = least.predicted_peak +
                        static_cast<int64_t>(share * static_cast<double>(everything.predicted_peak -
                                                                         least.predicted_peak));
    const auto plan = make_plan(profile, {.budget = budget});
    ASSERT_TRUE(plan) << budget;
    PlannedPolicy policy(*plan);
    const auto planned = step(&policy);
    SCOPED_TRACE(format("budget {} predicted {} measured {}: {}", budget, plan->predicted_peak,
                        planned.peak + profile.base, plan->describe()));
    EXPECT_FALSE(policy.has_diverged());
    EXPECT_TRUE(equal(planned.gradients, plain.gradients));
    EXPECT_LE(plan->predicted_peak, budget);
    EXPECT_LE(planned.peak + profile.base, budget * 1.01);
    // Of the whole, parameters and gradients included, as a user would count.
    EXPECT_NEAR(static_cast<double>(plan->predicted_peak),
                static_cast<double>(planned.peak + profile.base),
                0.03 * static_cast<double>(planned.peak + profile.base));
  }
}

}  // namespace
}  // namespace fleet::memory
