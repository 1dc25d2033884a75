// SPDX-License-Identifier: Apache-2.0
// Which values are evicted first, and what of that counts as time of the step.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/eviction/eviction_pool.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/plan/profile/replay_times.h"
#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

namespace fleet::memory {
namespace {

// By name, in the order of the calls.
class ReplayedOps final : public ReplayObserver {
 public:
  ReplayedOps() : before_(ReplayObserver::exchange(this)) {}
  ~ReplayedOps() override { ReplayObserver::exchange(before_); }
  void replayed(int op, double /*seconds*/) override { ops.push_back(op); }
  void recomputed(double /*overhead*/) override {}

  std::vector<int> ops;

 private:
  ReplayObserver* before_;
};

// Evicts on demand, in two segments if there is a cut.
class PoolsOf final : public TapePolicy {
 public:
  explicit PoolsOf(int cut) : cut_(cut) {}
  bool cut_before_op(const Tape& tape, const OpTraits& /*op*/) override {
    return tape.next_op() == cut_;
  }
  Treatment treatment(int /*segment*/) override { return Treatment::kEvictOnDemand; }

 private:
  int cut_;
};

class Eviction : public ::testing::Test {
 protected:
  static constexpr int kNever = -1;
  Eviction() { torch::manual_seed(1); }

  torch::Tensor slow(torch::Tensor x, int times) const {
    for (int i = 0; i < times; ++i) x = x.matmul(weight_);
    return x;
  }

  BudgetAllocatorScope on_{BudgetAllocator::cpu()};
  torch::Tensor weight_ = torch::randn({256, 256}) / 16;
  torch::Tensor input_ = torch::randn({256, 256}).requires_grad_();
};

// Of a value that several ops read, the next of them counts in backward, not where it was made.
TEST_F(Eviction, KnowsEveryReaderOfAValue) {
  PoolsOf policy(kNever);
  TapeScope scope(policy);
  torch::Tensor loss;
  int early = 0, late = 0;  // the ops that make them
  {
    early = scope.tape().next_op();
    const auto often = input_ + 1;
    auto x = slow(input_, 30);
    late = scope.tape().next_op();
    const auto once = input_ + 2;
    x = x * once;
    x = slow(x, 10);
    x = x * often;
    x.register_hook([](const torch::Tensor& gradient) {  // behind the backward of what follows
      EXPECT_GT(EvictionPool::evict(1), 0);
      return gradient;
    });
    x = slow(x, 1);
    loss = (x * often).sum();
  }
  scope.tape().end();
  const ReplayedOps replayed;
  loss.backward();
  EXPECT_EQ(std::ranges::count(replayed.ops, late), 1);
  EXPECT_EQ(std::ranges::count(replayed.ops, early), 0);
}

// Of two segments the cheaper value goes first, whichever was recorded first.
TEST_F(Eviction, ComparesTheValuesOfAllSegments) {
  PoolsOf policy(/*cut=*/10);
  TapeScope scope(policy);
  torch::Tensor loss;
  int cheap = 0;
  {
    auto x = slow(input_, 8);  // dear
    x = x * x;
    EXPECT_EQ(scope.tape().next_op(), 9);
    x = slow(x, 8);
    EXPECT_EQ(scope.tape().segment(), 1);
    cheap = scope.tape().next_op();
    const auto y = input_ + 1;
    loss = x.sum() + (y * y).sum();
  }
  scope.tape().end();
  EXPECT_GT(EvictionPool::evict(1), 0);
  const ReplayedOps replayed;
  loss.backward();
  EXPECT_EQ(replayed.ops, std::vector{cheap});
}

TEST(ProfilerTest, LeavesOutWhatEvictionsTake) {
  Profiler profiler(BudgetAllocator::cpu().counter());
  constexpr double kSeconds = 0.05;
  const auto evict = [&] {
    std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
    profiler.evicted(0, kSeconds);
  };
  profiler.op_begins(0);
  evict();
  profiler.op_returned();
  profiler.forward_ended();
  evict();
  const auto profile = profiler.finish();
  EXPECT_LT(profile.ops[0].seconds, kSeconds / 2);
  EXPECT_LT(profile.forward_seconds, kSeconds / 2);
  EXPECT_LT(profile.backward_seconds, kSeconds / 2);
}

// A mask that no bits can hold is drawn again, by a plan's prediction too.
TEST(ProfilerTest, CountsBitsForMasksThatFitIntoBits) {
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const auto profiler = std::make_shared<Profiler>(BudgetAllocator::cpu().counter());
    EvictOnDemand policy;
    torch::Tensor loss;
    {
      TapeScope scope(policy, profiler);
      const auto x = torch::ones({64, 64}, type).requires_grad_();
      loss = torch::dropout(x * 2, 0.5, /*train=*/true).sum();
      scope.tape().end();
    }
    loss.backward();
    const auto profile = profiler->finish();
    EXPECT_EQ(std::ranges::count_if(profile.blocks, &StepProfile::Block::is_mask),
              type == torch::kFloat ? 1 : 0);
  }
}

StepProfile::Op op_of(const std::string& name, double seconds) {
  StepProfile::Op op;
  op.name = name;
  op.seconds = seconds;
  return op;
}

TEST(ReplayTimesTest, EstimatesWhatWasNotReplayedByTheOpsOfItsName) {
  StepProfile profile;
  for (int i = 0; i < 4; ++i) profile.ops.push_back(op_of("aten::add", 1 + i));
  profile.ops.push_back(op_of("aten::exp", 10));
  ReplayTimes times;
  for (int i = 0; i < 3; ++i) times.replayed(i, 3.0 * (1 + i));
  times.replayed(0, 5);  // once more
  times.recomputed(0.25);
  times.recomputed(0.5);
  times.recomputed(9);  // disturbed
  times.write_into(profile, &StepProfile::Op::seconds);
  EXPECT_DOUBLE_EQ(profile.ops[0].replay_seconds, 4);
  EXPECT_DOUBLE_EQ(profile.ops[1].replay_seconds, 6);
  EXPECT_DOUBLE_EQ(profile.ops[3].replay_seconds, 12);
  EXPECT_DOUBLE_EQ(profile.ops[4].replay_seconds, 30);  // no other of its name: as all
  EXPECT_DOUBLE_EQ(profile.recompute_overhead, 0.5);
  EXPECT_DOUBLE_EQ(times.seconds(), 3 + 6 + 9 + 5 + 0.25 + 0.5 + 9);
}

// What a replay needs of another region, and what is evicted for it, are times of their own.
TEST_F(Eviction, CountsNoReplayTwice) {
  PoolsOf policy(kNever);
  TapeScope scope(policy);
  torch::Tensor loss;
  {
    const auto x = slow(input_, 4);
    loss = (x * x).sum();
  }
  scope.tape().end();
  EXPECT_GT(EvictionPool::evict(1), 0);
  const auto times = std::make_shared<ReplayTimes>();
  struct Slow final : ReplayObserver {
    explicit Slow(ReplayTimes& times) : times(times) {}
    void replayed(int op, double seconds) override {
      times.replayed(op, seconds);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      leave_out_of_replay(0.02);
    }
    void recomputed(double overhead) override { times.recomputed(overhead); }
    ReplayTimes& times;
  } slow_observer(*times);
  auto* const before = ReplayObserver::exchange(&slow_observer);
  const auto totals = replay_totals();
  loss.backward();
  ReplayObserver::exchange(before);
  EXPECT_TRUE(times->has(3));
  EXPECT_LT(times->seconds(), 0.06);  // four ops, and none of the four waits
  EXPECT_NEAR(replay_totals().seconds - totals.seconds, times->seconds(), 1e-4);
}

}  // namespace
}  // namespace fleet::memory
