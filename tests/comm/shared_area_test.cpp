// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/shared_memory/shared_area.h"

#include <latch>

#include <gtest/gtest.h>

#include "tests/support/count_down.h"
#include "tests/support/patience.h"
#include "tests/support/says.h"
#include "tests/support/thread_ranks.h"

namespace fleet::comm {
namespace {

using testing::error_message_of;
using testing::run_ranks;

torch::Tensor numbers_of(int rank, int64_t n, torch::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + rank));
  return torch::randn({n}, generator).to(dtype) * std::pow(10.0, rank);
}

class SharedAreaTest : public ::testing::TestWithParam<int> {};

TEST_P(SharedAreaTest, SumsInTheOrderOfTheRanksAndGivesAllTheSameBits) {
  const int size = GetParam();
  run_ranks(size, [&](const testing::Comm& comm) {
    constexpr int64_t kRoom = 3 << 20;
    const auto area = SharedArea::make(comm, kRoom);
    ASSERT_NE(area, nullptr);
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      for (const int64_t n : {1, 15, 16, 17, 1000, 4096 * 5 + 3, 200'001}) {
        for (const int64_t offset : {0, 64, 4096}) {
          auto expected = numbers_of(0, n, dtype);
          for (int rank = 1; rank < size; ++rank) expected += numbers_of(rank, n, dtype);
          auto mine = torch::from_blob(static_cast<char*>(area->data()) + offset, {n}, dtype);
          mine.copy_(numbers_of(comm->rank(), n, dtype));
          area->all_reduce_sum_async(mine, "numbers").wait();
          ASSERT_TRUE(torch::equal(mine, expected)) << n << " at " << offset;
          comm->barrier("before the memory is used again");
        }
      }
    }
  });
}

TEST_P(SharedAreaTest, RunsManySumsInOrderWhileRanksAreLate) {
  run_ranks(GetParam(), [](const testing::Comm& comm) {
    constexpr int64_t kNumber = 50, kLength = 1024;
    const auto area = SharedArea::make(comm, kNumber * kLength * 4);
    auto all = torch::from_blob(area->data(), {kNumber, kLength}, torch::kFloat);
    for (int round = 0; round < 5; ++round) {
      std::vector<Work> pending;
      for (int64_t i = 0; i < kNumber; ++i) {
        if (i == 20) std::this_thread::sleep_for(std::chrono::milliseconds(3 * comm->rank()));
        all[i].fill_(static_cast<float>(i + comm->rank()));
        pending.push_back(area->all_reduce_sum_async(all[i], "one of many"));
      }
      for (int64_t i = 0; i < kNumber; ++i) {
        pending[static_cast<size_t>(i)].wait();
        const int size = comm->size();
        EXPECT_EQ(all[i][kLength - 1].item<float>(),
                  static_cast<float>(i * size + size * (size - 1) / 2));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, SharedAreaTest, ::testing::Values(2, 3, 4));

TEST(SharedAreaTest, NamesTheMissingRank) {
  std::string text;
  std::latch has_failed(1);
  run_ranks(2,
            [&](const testing::Comm& comm) {
              const auto area = SharedArea::make(comm, 4096);
              if (comm->rank() == 1) return has_failed.wait();
              const testing::CountDown end(has_failed);
              auto mine = torch::from_blob(area->data(), {16}, torch::kFloat);
              text = error_message_of(
                  [&] { area->all_reduce_sum_async(mine, "gradient bucket 1 of 1").wait(); });
            },
            {.timeout = launch::patient(std::chrono::milliseconds(2000))});
  EXPECT_TRUE(says(text, "rank 0: all_reduce of gradient bucket 1 of 1 (16 x Float", "rank 1 (",
                   "has not reached this call"));
}

TEST(SharedAreaTest, IsOffOnEveryRankWhenOneSwitchesItOff) {
  ::setenv("FLEET_SHARED_MEMORY", "0", 1);
  run_ranks(2, [](const testing::Comm& comm) { EXPECT_EQ(SharedArea::make(comm, 4096), nullptr); });
  ::setenv("FLEET_SHARED_MEMORY", "off", 1);
  EXPECT_TRUE(says(error_message_of([&] { run_ranks(2, [](const testing::Comm&) {}); }),
                   "[environment] FLEET_SHARED_MEMORY='off' is neither 0 nor 1"));
  ::unsetenv("FLEET_SHARED_MEMORY");
}

}  // namespace
}  // namespace fleet::comm
