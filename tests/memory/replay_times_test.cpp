// SPDX-License-Identifier: Apache-2.0
// What counts as time of an op, of a step and of a replay. Times are given, not waited for.
#include "fleet/memory/plan/profile/replay_times.h"

#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/eviction/eviction_pool.h"
#include "fleet/memory/plan/profile/op_cost.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

namespace fleet::memory {
namespace {

constexpr double kLong = 1e6;  // seconds, beside which those of the test itself do not matter

TEST(ProfilerTest, LeavesOutWhatEvictionsTake) {
  Profiler profiler(BudgetAllocator::cpu().counter());
  profiler.op_begins(0);
  profiler.evicted(/*bytes=*/0, kLong);
  profiler.op_returned();
  profiler.forward_ended();
  profiler.evicted(/*bytes=*/0, 2 * kLong);
  const auto profile = profiler.finish();
  EXPECT_NEAR(profile.ops[0].seconds, -kLong, kLong / 100);
  EXPECT_NEAR(profile.forward_seconds, -kLong, kLong / 100);
  EXPECT_NEAR(profile.backward_seconds, -2 * kLong, kLong / 100);
}

StepProfile::Op op_of(const std::string& name, double seconds) {
  StepProfile::Op op;
  op.name = name;
  op.seconds = seconds;
  return op;
}

TEST(ReplayTimesTest, EstimatesWhatWasNotReplayedByTheOpsOfItsName) {
  StepProfile profile;
  for (int i = 0; i < 4; ++i) {
    profile.ops.push_back(op_of("aten::add", 1 + i));
    profile.ops.back().made_bytes = i;  // none is equal to another
  }
  profile.ops.push_back(op_of("aten::exp", 10));
  ReplayTimes times;
  for (int i = 0; i < 3; ++i) times.replayed(i, 3.0 * (1 + i), true);
  times.replayed(0, 5, true);  // once more: 4 on average
  times.recomputed(0.25);
  times.recomputed(0.5);
  times.recomputed(9);  // disturbed
  EXPECT_DOUBLE_EQ(times.seconds(), 3 + 6 + 9 + 5 + 0.25 + 0.5 + 9);
  times.write_into(profile, &StepProfile::Op::seconds);
  EXPECT_DOUBLE_EQ(profile.ops[0].replay_seconds, 3.5);  // one sample, and what the others say
  EXPECT_DOUBLE_EQ(profile.ops[1].replay_seconds, 6);
  EXPECT_DOUBLE_EQ(profile.ops[3].replay_seconds, 12);
  EXPECT_DOUBLE_EQ(profile.ops[4].replay_seconds, 30);  // no other of its name: as all
  EXPECT_DOUBLE_EQ(profile.recompute_overhead, 0.5);
}

TEST(ReplayTimesTest, EqualOpsHaveTheMedianOfTheirReplays) {
  StepProfile profile;
  for (int i = 0; i < 7; ++i) profile.ops.push_back(op_of("aten::add", 1));
  ReplayTimes times;
  times.replayed(1, 2, true);
  times.replayed(2, 1000, true);  // disturbed
  times.replayed(4, 3, true);
  times.write_into(profile, &StepProfile::Op::seconds);
  for (size_t i = 1; i < 6; ++i) EXPECT_DOUBLE_EQ(profile.ops[i].replay_seconds, 3);
}

// An op that ended early, since only what it saves at its beginning was wanted, would look cheap.
TEST(ReplayTimesTest, ReplaysThatEndedEarlyCountWhereThereIsNoOther) {
  StepProfile profile;
  for (int i = 0; i < 7; ++i) profile.ops.push_back(op_of("aten::matmul", 10));
  for (int i = 0; i < 5; ++i) profile.ops.push_back(op_of("aten::exp", 10));
  ReplayTimes times;
  for (int i = 1; i < 5; ++i) times.replayed(i, 0.01, /*is_whole=*/false);
  times.replayed(5, 12, true);
  times.replayed(5, 0.01, false);
  times.replayed(9, 0.02, false);
  times.write_into(profile, &StepProfile::Op::seconds);
  EXPECT_DOUBLE_EQ(profile.ops[1].replay_seconds, 11);  // of one sample, and the estimate
  EXPECT_DOUBLE_EQ(profile.ops[5].replay_seconds, 11);
  EXPECT_DOUBLE_EQ(profile.ops[9].replay_seconds, 0.02);
  EXPECT_DOUBLE_EQ(times.seconds(), 12 + 5 * 0.01 + 0.02);
}

TEST(ReplayTimesTest, ComputedTimesHaveNoOverhead) {
  StepProfile profile;
  profile.ops.push_back(op_of("aten::add", 1));
  ReplayTimes times;
  times.recomputed(0.5);
  times.write_into(profile, &StepProfile::Op::seconds);
  EXPECT_DOUBLE_EQ(profile.recompute_overhead, 0.5);
  set_times(profile, {.flops = 1, .bytes = 1});
  EXPECT_DOUBLE_EQ(profile.recompute_overhead, 0);
}

// What a replay needs of another region, and what is evicted for it, are times of their own.
TEST(ReplayTimesTest, CountsNoReplayTwice) {
  const BudgetAllocatorScope on(BudgetAllocator::cpu());
  EvictOnDemand policy;
  torch::Tensor loss;
  {
    TapeScope scope(policy);
    const auto x = torch::ones({256, 256}).requires_grad_() * 2;
    loss = x.tanh().exp().tanh().exp().sum();
    scope.tape().end();
  }
  while (EvictionPool::evict(1) > 0) {
  }
  struct Slow final : ReplayObserver {
    void replayed(int op, double seconds, bool is_whole) override {
      times.replayed(op, seconds, is_whole);
      leave_out_of_replay(kLong);  // as if values had been evicted
    }
    void recomputed(double overhead) override { times.recomputed(overhead); }
    ReplayTimes times;
  } slow;
  auto* const before = ReplayObserver::exchange(&slow);
  const auto totals = replay_totals();
  loss.backward();
  ReplayObserver::exchange(before);
  const auto now = replay_totals();
  const auto ops = static_cast<double>(now.ops - totals.ops);
  EXPECT_GE(ops, 3);
  EXPECT_NEAR(slow.times.seconds(), -ops * kLong, kLong / 100);
  EXPECT_NEAR(now.seconds - totals.seconds, slow.times.seconds(), kLong / 100);
}

}  // namespace
}  // namespace fleet::memory
