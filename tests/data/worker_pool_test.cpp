// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/support/error_of.h"
#include "tests/support/patience.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

TEST(WorkerPoolTest, DoesEveryItemOnce) {
  for (const int64_t threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 3, 200}) {
      std::vector<std::atomic<int>> done(static_cast<size_t>(count));
      pool.run(count, [&](int64_t worker, int64_t item) {
        EXPECT_TRUE(worker >= 0 && worker < threads);
        ++done[static_cast<size_t>(item)];
      });
      EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](const auto& n) { return n == 1; }));
    }
  }
}

// Each item waits until two are under way: one thread alone would never end.
TEST(WorkerPoolTest, WorksAtTheSameTime) {
  WorkerPool pool(2);
  std::atomic<int> begun = 0;
  pool.run(2, [&](int64_t, int64_t) {
    ++begun;
    const auto deadline =
        std::chrono::steady_clock::now() + launch::patient(std::chrono::seconds(20));
    while (begun < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
  EXPECT_EQ(begun, 2);
}

TEST(WorkerPoolTest, RethrowsTheFirstItemsErrorAndStaysUsable) {
  WorkerPool pool(3);
  std::atomic<int> done = 0;
  const auto text = error_message_of([&] {
    pool.run(50, [&](int64_t, int64_t item) {
      ++done;
      if (item % 7 == 3) throw Error("data", "item " + std::to_string(item));
    });
  });
  EXPECT_TRUE(says(text, "item 3"));
  EXPECT_EQ(done, 50);
  pool.run(5, [&](int64_t, int64_t) { ++done; });
  EXPECT_EQ(done, 55);
}

TEST(WorkerPoolTest, ServesSeveralThreadsInTurn) {
  WorkerPool pool(2);
  std::atomic<int> done = 0, inside = 0;
  std::atomic<bool> crowded = false;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      pool.run(100, [&](int64_t, int64_t) {
        if (++inside > 2) crowded = true;
        ++done;
        --inside;
      });
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(done, 400);
  EXPECT_FALSE(crowded);
}

}  // namespace
}  // namespace fleet
