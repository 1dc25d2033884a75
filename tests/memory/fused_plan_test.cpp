// SPDX-License-Identifier: Apache-2.0
// Plans for nets of Fleet's fused ops, which save what they read, often as views of one result.

#include <set>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/planner.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/plan/simulation/plan_simulation.h"
#include "fleet/memory/replay/replay.h"
#include "fleet/ops/add_norm.h"
#include "fleet/ops/bias_gelu.h"
#include "fleet/ops/tiled_attention.h"

#include "tests/memory/plans_by_kind.h"

namespace fleet::memory {
namespace {

constexpr int64_t kSamples = 4, kLength = 128, kWidth = 64, kHeads = 4, kLayers = 4;

// A transformer's encoder of fused ops.
class FusedNet {
 public:
  FusedNet() : on_(BudgetAllocator::cpu()) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    for (int64_t i = 0; i < kLayers; ++i) {
      layers_.push_back({.qkv = parameter({3 * kWidth, kWidth}),
                         .out = parameter({kWidth, kWidth}),
                         .up = parameter({4 * kWidth, kWidth}),
                         .up_bias = parameter({4 * kWidth}),
                         .down = parameter({kWidth, 4 * kWidth}),
                         .norms = parameter({4, kWidth})});
    }
    input_ = torch::randn({kSamples, kLength, kWidth});
  }

  struct Step {
    int64_t peak = 0;  // above what was live before
    std::vector<torch::Tensor> gradients;
  };
  Step step(TapePolicy& policy, const std::shared_ptr<Profiler>& profiler = nullptr) {
    for (const auto& p : parameters_) p.mutable_grad() = torch::zeros_like(p);
    torch::manual_seed(2);
    counter_.reset_peaks();
    const auto live = counter_.live();
    torch::Tensor loss;
    {
      TapeScope scope(policy, profiler);
      loss = this->loss();
    }
    loss.backward();
    Step result{.peak = counter_.peak() - live};
    for (const auto& p : parameters_) result.gradients.push_back(p.grad().clone());
    return result;
  }

  StepProfile profile() {
    EvictOnDemand keep;
    step(keep);
    const auto profiler = std::make_shared<Profiler>(counter_);
    step(keep, profiler);
    return profiler->finish();
  }

 private:
  struct Layer {
    torch::Tensor qkv, out, up, up_bias, down, norms;
  };

  torch::Tensor parameter(at::IntArrayRef sizes) {
    parameters_.push_back((torch::randn(sizes) * 0.1).requires_grad_());
    return parameters_.back();
  }

  torch::Tensor loss() {
    auto x = input_;
    for (const auto& layer : layers_) {
      const auto qkv = torch::linear(x, layer.qkv).chunk(3, -1);
      const auto heads = [&](int i) {
        return qkv[static_cast<size_t>(i)].view({kSamples, kLength, kHeads, -1});
      };
      const auto context = ops::tiled_attention(heads(0), heads(1), heads(2), {.dropout = 0.1});
      x = ops::add_norm(torch::linear(context.flatten(2), layer.out), x, layer.norms[0],
                        layer.norms[1], {.dropout = 0.1});
      const auto wide = ops::bias_gelu(torch::linear(x, layer.up), layer.up_bias);
      x = ops::add_norm(torch::linear(wide, layer.down), x, layer.norms[2], layer.norms[3],
                        {.dropout = 0.1});
    }
    return x.square().mean();
  }

  BudgetAllocatorScope on_;
  MemoryCounter& counter_ = BudgetAllocator::cpu().counter();
  std::vector<torch::Tensor> parameters_;
  std::vector<Layer> layers_;
  torch::Tensor input_;
};

void expect_equal(const FusedNet::Step& a, const FusedNet::Step& b) {
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    EXPECT_TRUE(a.gradients[i].equal(b.gradients[i])) << i;
  }
}

// Queries, keys and values are views of one result: they are evicted where that is said to be, and
// recomputed together.
TEST(FusedPlan, PredictsSelectiveRecomputationOfEveryKindOfOp) {
  FusedNet net;
  const auto profile = net.profile();
  const PlanSimulation simulation(profile);
  KeepAll keep;
  const auto plain = net.step(keep);
  std::set<int64_t> peaks;
  for (const auto& [name, plan] : testing::plans_by_kind(profile, 8)) {
    const auto predicted = simulation.predict(plan).peak - profile.base;
    PlannedPolicy policy(std::make_shared<const Plan>(plan));
    const auto measured = net.step(policy);
    SCOPED_TRACE(name);
    EXPECT_LE(std::abs(static_cast<double>(predicted - measured.peak)),
              0.04 * static_cast<double>(measured.peak))
        << "predicted " << predicted << ", measured " << measured.peak;
    expect_equal(measured, plain);
    peaks.insert(measured.peak);
  }
  EXPECT_GE(peaks.size(), 6U);  // kinds make a difference
}

// The layer that makes queries, keys and values is called once for all three.
TEST(FusedPlan, OneReplayRecomputesAllViewsOfAResult) {
  FusedNet net;
  const auto profile = net.profile();
  auto plan = keep_everything(profile);
  int made = 0;
  for (size_t k = 0; k + 1 < profile.ops.size(); ++k) {
    if (profile.ops[k].name != "aten::linear" || profile.ops[k + 1].name != "aten::chunk") continue;
    plan.recomputed[k] = 1;
    ++made;
  }
  ASSERT_EQ(made, kLayers);
  PlannedPolicy policy(std::make_shared<const Plan>(plan));
  const auto before = replay_totals();
  net.step(policy);
  EXPECT_EQ(replay_totals().recomputations - before.recomputations, kLayers);
}

TEST(FusedPlan, IsPlannedWithinHalfAndAThirdOfItsActivations) {
  FusedNet net;
  const auto profile = net.profile();
  KeepAll keep;
  const auto plain = net.step(keep);
  for (const int64_t part : {2, 3}) {
    const auto room = plain.peak / part;
    const auto plan = make_plan(profile, {.budget = profile.base + room});
    ASSERT_TRUE(plan) << part;
    PlannedPolicy policy(std::make_shared<const Plan>(*plan));
    const auto measured = net.step(policy);
    EXPECT_LE(static_cast<double>(measured.peak), 1.02 * static_cast<double>(room)) << part;
    expect_equal(measured, plain);
  }
}

}  // namespace
}  // namespace fleet::memory
