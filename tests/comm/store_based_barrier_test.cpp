// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY 1
#include "fleet/comm/rendezvous/store_based_barrier.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tests/support/says.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;

/// Counts the requests for rank 3.
class AskedStore : public c10d::PrefixStore {
 public:
  explicit AskedStore(c10::intrusive_ptr<c10d::Store> table) : PrefixStore("t", std::move(table)) {}

  bool check(const std::vector<std::string>& keys) override {
    if (keys.front() == "arrived/3") ++asked;
    return PrefixStore::check(keys);
  }

  std::atomic<int> asked = 0;
};

TEST(StoreBasedBarrierTest, LogsWhatItWaitsFor) {
  auto table = c10::make_intrusive<c10d::HashStore>();
  table->setTimeout(60s);
  const auto asked = c10::make_intrusive<AskedStore>(table);
  auto others = Store::over(table).prefixed("t");
  others.set("arrived/2", "1");
  ::testing::internal::CaptureStdout();
  std::vector<int> missing = {0};
  std::thread waiter([&] {
    WaitNotice notice("init", 600s, /*every=*/1ms);
    missing = store_based_barrier(Store::over(asked), 0, 4, 600s, notice);
  });
  while (asked->asked < 2) std::this_thread::yield();  // between two questions it says it
  others.set("arrived/1", "1");
  others.set("arrived/3", "1");
  waiter.join();
  EXPECT_TRUE(missing.empty());
  EXPECT_TRUE(says(::testing::internal::GetCapturedStdout(),
                   "[init] waits for ranks 1, 3 (0 s of 600 s)\n"));
}

TEST(StoreBasedBarrierTest, ReturnsTheMissingRanks) {
  const auto store = Store::in_memory();
  WaitNotice notice("init", 10ms);
  EXPECT_EQ(store_based_barrier(store, 1, 3, 10ms, notice), (std::vector<int>{0, 2}));
  EXPECT_EQ(store_based_barrier(store, 0, 2, 0ms, notice), std::vector<int>{}) << "both are there";
}

TEST(StoreBasedBarrierTest, NamesAFewOfManyRanks) {
  EXPECT_EQ(ranks_text({7}), "rank 7");
  EXPECT_EQ(ranks_text({1, 3}), "ranks 1, 3");
  EXPECT_EQ(ranks_text({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

}  // namespace
}  // namespace fleet::comm
