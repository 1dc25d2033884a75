// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/shared_memory/shared_calls.h"

#include <cstdlib>
#include <fstream>
#include <latch>
#include <random>

#include <gtest/gtest.h>

#include "fleet/comm/transport/shared_memory/shared_sums.h"
#include "fleet/core/process/process_setup.h"

#include "tests/support/says.h"
#include "tests/support/thread_ranks.h"

namespace fleet::comm {
namespace {

using testing::error_message_of;
using testing::run_ranks;

// The same on every rank that asks for it.
torch::Tensor input_of(int rank, int call, int64_t n, torch::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 * call + rank));
  return (torch::randn({n}, generator) * std::pow(10.0, rank % 3)).to(dtype);
}

// One after the other, in rank order.
torch::Tensor reduced(int size, int call, int64_t n, torch::ScalarType dtype, ReduceOp op) {
  const bool is_low = dtype == torch::kHalf || dtype == torch::kBFloat16;
  const auto wide = is_low ? torch::kFloat : dtype;
  auto result = input_of(0, call, n, dtype).to(wide);
  for (int rank = 1; rank < size; ++rank) {
    const auto next = input_of(rank, call, n, dtype).to(wide);
    result = op == ReduceOp::kMax ? torch::maximum(result, next) : result + next;
  }
  return (op == ReduceOp::kAvg ? result / size : result).to(dtype);
}

int64_t mappings_of_fleet() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:fleet") != line.npos;
  return count;
}

class SharedCallsTest : public ::testing::TestWithParam<int> {};

// Calls of all kinds, types and sizes, below and above what a slot holds, blocking and not, waited
// for in any order: equal to the sum in rank order, bit for bit, on every rank.
TEST_P(SharedCallsTest, RandomCallsInAnyOrderGiveEveryRankTheSumInRankOrder) {
  const int size = GetParam();
  constexpr int kCalls = 120;
  constexpr std::array kTypes = {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf,
                                 torch::kLong};
  run_ranks(size, [&](const testing::Comm& comm) {
    std::mt19937 same(7);                                                    // which calls
    std::mt19937 own(static_cast<std::mt19937::result_type>(comm->rank()));  // how they are waited
                                                                             // for
    struct Pending {
      torch::Tensor result, expected;
      Work work;
      int call;
    };
    std::vector<Pending> pending;
    const auto finish = [&](size_t at) {
      auto& item = pending[at];
      if (own() % 2 == 0) item.work.done();
      item.work.wait();
      ASSERT_TRUE(torch::equal(item.result, item.expected)) << "call " << item.call;
      pending.erase(pending.begin() + static_cast<ptrdiff_t>(at));
    };
    for (int call = 0; call < kCalls; ++call) {
      const auto dtype = kTypes[same() % kTypes.size()];
      const auto most = std::array<int64_t, 3>{40, 3000, 60'000}[same() % 3];
      const auto n = static_cast<int64_t>(same() % static_cast<uint64_t>(most));
      const auto kind = same() % 5;
      auto mine = input_of(comm->rank(), call, n, dtype);
      if (kind == 0) {
        const int root = static_cast<int>(same() % static_cast<unsigned>(size));
        auto work = comm->broadcast_async(mine, root, "numbers");
        pending.push_back({mine, input_of(root, call, n, dtype), std::move(work), call});
      } else if (kind == 1) {
        const auto rows = comm->all_gather(mine, "numbers");
        for (int rank = 0; rank < size; ++rank) {
          ASSERT_TRUE(torch::equal(rows[rank], input_of(rank, call, n, dtype))) << "call " << call;
        }
      } else if (kind == 2 && same() % 4 == 0) {
        comm->barrier("in between");
      } else {
        const auto ops = std::array{ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kAvg};
        const auto op = ops[same() % (dtype == torch::kLong ? 2 : 3)];
        // Through sockets more than two ranks are summed in another order.
        const bool is_small = mine.nbytes() <= static_cast<size_t>(SharedCalls::kSlotBytes);
        auto work = comm->all_reduce_async(mine, op, "numbers");
        auto expected = reduced(size, call, n, dtype, op);
        if (!is_small && size > 2 && op != ReduceOp::kMax) {
          work.wait();
          expected = mine;
        }
        pending.push_back({mine, expected, std::move(work), call});
      }
      while (pending.size() > own() % 24) finish(own() % pending.size());
    }
    while (!pending.empty()) finish(own() % pending.size());
  });
}

TEST_P(SharedCallsTest, MoreCallsThanSlotsMayBeUnderWay) {
  run_ranks(GetParam(), [](const testing::Comm& comm) {
    constexpr int kMany = 100;
    std::vector<torch::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < kMany; ++i) {
      tensors.push_back(torch::full({3}, static_cast<float>(i)));
      works.push_back(comm->all_reduce_async(tensors.back(), ReduceOp::kSum, "one of many"));
    }
    for (int i = kMany - 1; i >= 0; --i) works[static_cast<size_t>(i)].wait();
    for (int i = 0; i < kMany; ++i) {
      EXPECT_EQ(tensors[static_cast<size_t>(i)][2].item<float>(),
                static_cast<float>(i * comm->size()));
    }
  });
}

// One rank waits in a socket for a call that the other starts only after its small calls, more than
// there are slots, are complete.
TEST_P(SharedCallsTest, CompleteWhileARankWaitsForACallThroughSockets) {
  run_ranks(GetParam(), [](const testing::Comm& comm) {
    constexpr int kSmall = 20;
    std::vector<torch::Tensor> small;
    std::vector<Work> works;
    for (int i = 0; i < kSmall; ++i) {
      small.push_back(torch::full({3}, static_cast<float>(i)));
      works.push_back(comm->all_reduce_async(small.back(), ReduceOp::kSum, "small"));
    }
    if (comm->rank() != 0) works.back().wait();
    auto large = torch::ones({SharedCalls::kSlotBytes});
    comm->all_reduce(large, ReduceOp::kSum, "large");
    for (auto& work : works) work.wait();
    EXPECT_EQ(large[0].item<float>(), static_cast<float>(comm->size()));
    for (int i = 0; i < kSmall; ++i) {
      EXPECT_EQ(small[static_cast<size_t>(i)][0].item<float>(),
                static_cast<float>(i * comm->size()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SharedCallsTest, ::testing::Values(2, 3, 5));

TEST(SharedCallsTest, MoreRanksThanCoresMakeProgress) {
  const int size = 3 * available_cores() + 2;
  run_ranks(size, [&](const testing::Comm& comm) {
    for (int call = 0; call < 200; ++call) {
      auto sum = torch::full({2}, comm->rank(), torch::kLong);
      comm->all_reduce(sum, ReduceOp::kSum, "ranks");
      ASSERT_EQ(sum[1].item<int64_t>(), size * (size - 1) / 2);
    }
  });
}

TEST(SharedCallsTest, AreUsedForSmallCallsAndFreedWithTheGroup) {
  int64_t inside = 0;
  run_ranks(2, [&](const testing::Comm& comm) {
    comm->barrier("both have mapped the other's memory");
    if (comm->rank() == 0) inside = mappings_of_fleet();
    comm->barrier("both are counted");
  });
  EXPECT_EQ(inside, 4) << "two ranks of this process, each with its own and its peer's";
  EXPECT_EQ(mappings_of_fleet(), 0);
  ::setenv("FLEET_SHARED_MEMORY", "0", 1);
  run_ranks(2, [&](const testing::Comm& comm) {
    auto sum = torch::ones({3});
    comm->all_reduce(sum, ReduceOp::kSum, "through sockets");
    EXPECT_EQ(sum[0].item<float>(), 2);
    if (comm->rank() == 0) inside = mappings_of_fleet();
    comm->barrier("counted");
  });
  ::unsetenv("FLEET_SHARED_MEMORY");
  EXPECT_EQ(inside, 0);
}

// Long before the time limit.
TEST(SharedCallsTest, CallsOfDifferentSizesAreAnErrorThatNamesBoth) {
  std::array<std::string, 2> errors;
  std::latch have_failed(2);
  run_ranks(2, [&](const testing::Comm& comm) {
    auto numbers = torch::ones({10 + comm->rank()});
    errors[static_cast<size_t>(comm->rank())] =
        error_message_of([&] { comm->all_reduce(numbers, ReduceOp::kSum, "sums"); });
    have_failed.arrive_and_wait();
  });
  EXPECT_TRUE(says(errors[0], "rank 1 (",
                   "is at another call: its call 2 is 'all_reduce of sums (11",
                   "and here it is 'all_reduce of sums (10", "reason: rank 1 is at another call"));
  EXPECT_TRUE(
      says(errors[1], "rank 0 (", "is at another call: its call 2 is 'all_reduce of sums (10"));
}

TEST(SharedCallsTest, RankThatLeavesIsNoticedBeforeTheTimeLimit) {
  std::string error;
  run_ranks(2, [&](const testing::Comm& comm) {
    comm->barrier("both are here");
    if (comm->rank() == 1) return;
    auto numbers = torch::ones({10});
    error = error_message_of([&] { comm->all_reduce(numbers, ReduceOp::kSum, "sums"); });
  });
  EXPECT_TRUE(says(error, "rank 0: all_reduce of sums (10 x Float", "rank 1 (",
                   "reason: rank 1 has left the group"));
}

TEST(SharedCallsTest, AfterAFailureEveryCallOfTheGroupFails) {
  std::string error;
  std::latch has_failed(1);
  run_ranks(2, [&](const testing::Comm& comm) {
    if (comm->rank() == 1) {
      has_failed.wait();
      auto late = torch::ones({4});
      EXPECT_TRUE(says(error_message_of([&] { comm->all_reduce(late, ReduceOp::kSum, "late"); }),
                       "reason: rank 0 has left the group"));
      return;
    }
    const auto soon = comm->with_timeout(std::chrono::milliseconds(200));
    auto numbers = torch::ones({4});
    EXPECT_TRUE(says(error_message_of([&] { soon->all_reduce(numbers, ReduceOp::kSum, "first"); }),
                     "reason: the time is up"));
    EXPECT_TRUE(says(error_message_of([&] { comm->barrier("second"); }), "reason: the time is up"));
    EXPECT_EQ(numbers[0].item<float>(), 1) << "what failed writes nothing later";
    has_failed.count_down();
  });
}

TEST(SharedSumsTest, MaximumOfANanIsNan) {
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a{1, nan, 3}, b{nan, 2, 4};
  const auto result = torch::empty({3});
  reduce_in_rank_order({a.data(), b.data()}, ReduceOp::kMax, result);
  EXPECT_TRUE(std::isnan(result[0].item<float>()) && std::isnan(result[1].item<float>()));
  EXPECT_EQ(result[2].item<float>(), 4);
}

}  // namespace
}  // namespace fleet::comm
