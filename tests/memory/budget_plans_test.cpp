// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/budget_plans.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/tape/tape.h"

namespace fleet::memory {
namespace {

class BudgetPlansTest : public ::testing::Test {
 protected:
  BudgetPlans plans_for(int64_t budget) {
    return {{.budget = counter_.live() + budget,
             .limit = counter_.live() + (int64_t{1} << 30),
             .logs_plans = false},
            counter_};
  }

  // One step, of which `backward_ended` may tell what its replays took.
  template <typename F>
  void step(BudgetPlans& plans, F&& backward_ended) {
    plans.prepare(kSamples);
    run_ = plans.begin();
    TapeReport report;
    torch::Tensor loss;
    {
      TapeScope scope(*run_.policy, run_.profiler);
      scope.tape().set_replay_observer(run_.replays ? run_.replays : seen_);
      auto x = torch::ones({kSamples, 4096}).requires_grad_();
      for (int i = 0; i < 8; ++i) x = x.tanh().exp();  // each saves its result, of 1 MiB
      loss = x.sum();
      scope.tape().end();
      report = scope.tape().report();
    }
    plans.end_forward(report);
    loss.backward();
    backward_ended();
    plans.end_backward();
  }
  void step(BudgetPlans& plans) {
    step(plans, [] {});
  }

  static int64_t replayed(const ReplayTimes& times, const BudgetPlans& plans,
                          const std::string& name) {
    const auto& ops = plans.profile(kSamples)->ops;
    int64_t count = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].name == name && times.has(static_cast<int>(i))) ++count;
    }
    return count;
  }

  static constexpr int64_t kSamples = 64;
  BudgetAllocatorScope on_{BudgetAllocator::cpu()};
  MemoryCounter& counter_ = BudgetAllocator::cpu().counter();
  BudgetPlans::Forward run_;
  std::shared_ptr<ReplayTimes> seen_ = std::make_shared<ReplayTimes>();
};

// The measured step may not have replayed an op whose replay turns out to be slow. Half of the
// values have to be evicted, those of either op.
TEST_F(BudgetPlansTest, LooksForAnotherPlanWhereReplaysTakeLonger) {
  auto plans = plans_for(int64_t{14} << 20);
  step(plans);
  step(plans);
  const auto first = plans.plan(kSamples);
  ASSERT_TRUE(first);
  std::string slow;
  int64_t before = 0;
  step(plans, [&] {
    ASSERT_TRUE(run_.replays);
    const auto tanhs = replayed(*run_.replays, plans, "aten::tanh");
    const auto exps = replayed(*run_.replays, plans, "aten::exp");
    slow = tanhs > exps ? "aten::tanh" : "aten::exp";
    before = std::max(tanhs, exps);
    const auto& ops = plans.profile(kSamples)->ops;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].name == slow) run_.replays->replayed(static_cast<int>(i), 1e3, /*is_whole=*/true);
    }
  });
  const auto second = plans.plan(kSamples);
  ASSERT_NE(first, second);
  EXPECT_FALSE(plans.steps().is_settled);  // it has not been followed yet
  step(plans);
  EXPECT_FALSE(run_.replays);  // checked once
  EXPECT_LT(replayed(*seen_, plans, slow), before);
  EXPECT_EQ(plans.plan(kSamples), second);
  EXPECT_TRUE(plans.steps().is_settled);
}

}  // namespace
}  // namespace fleet::memory
