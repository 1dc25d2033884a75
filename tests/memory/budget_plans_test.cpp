// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/budget_plans.h"

#include <gtest/gtest.h>

#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/allocator/budget_exceeded.h"
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

  // One step over so many samples; false: it was short of memory.
  bool step(BudgetPlans& plans, int64_t samples, bool fails) {
    plans.prepare(samples);
    was_ = plans.begin();
    TapeReport report;
    torch::Tensor loss;
    {
      TapeScope scope(*was_.policy, was_.profiler);
      scope.tape().set_replay_observer(was_.replays);
      auto x = torch::ones({samples, 4096}).requires_grad_();
      for (int i = 0; i < 8; ++i) x = (x * 2).tanh();
      loss = x.sum();
      scope.tape().end();
      report = scope.tape().report();
    }
    if (fails) {
      plans.forget();
      return false;
    }
    plans.end_forward(report);
    loss.backward();
    plans.end_backward();
    return true;
  }

  BudgetAllocatorScope on_{BudgetAllocator::cpu()};
  MemoryCounter& counter_ = BudgetAllocator::cpu().counter();
  BudgetPlans::Forward was_;
};

// Eviction on demand knows only what has run so far. A plan knows the step: one is looked for
// before a batch is split.
TEST_F(BudgetPlansTest, MeasuresAStepOnceBeforeItsBatchIsSplit) {
  auto plans = plans_for(int64_t{4} << 20);
  step(plans, 64, /*fails=*/true);
  EXPECT_FALSE(was_.is_unbounded);
  EXPECT_TRUE(plans.tighten(/*can_split=*/true));
  step(plans, 64, /*fails=*/false);
  EXPECT_TRUE(was_.is_unbounded);
  ASSERT_TRUE(plans.plan(64));
  step(plans, 64, /*fails=*/false);
  EXPECT_FALSE(was_.is_unbounded);
  EXPECT_TRUE(was_.replays);  // its times are checked
}

// Where not even a plan fits, smaller micro-batches are planned from that measurement.
TEST_F(BudgetPlansTest, PlansSmallerMicroBatchesFromOneThatNoPlanHolds) {
  auto plans = plans_for(int64_t{4} << 20);
  EXPECT_TRUE((step(plans, 512, true), plans.tighten(true)));
  EXPECT_THROW(step(plans, 512, false), BudgetExceeded);
  EXPECT_TRUE(was_.is_unbounded);
  plans.forget();
  EXPECT_FALSE(plans.tighten(true));                            // the batch is split
  EXPECT_FALSE((step(plans, 256, true), plans.tighten(true)));  // without a measurement
  EXPECT_FALSE(was_.is_unbounded);
  step(plans, 64, false);
  EXPECT_TRUE(plans.plan(64));
}

}  // namespace
}  // namespace fleet::memory
