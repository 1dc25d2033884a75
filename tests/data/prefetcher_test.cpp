// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/prefetcher.h"

#include <atomic>
#include <memory>
#include <stdexcept>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace fleet {
namespace {

TEST(PrefetcherTest, KeepsTheOrder) {
  for (const int64_t ahead : {0, 1, 3}) {
    Prefetcher<int> numbers([next = 0]() mutable { return next++; }, 100, ahead);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(numbers.take(), i) << ahead;
  }
}

TEST(PrefetcherTest, IsNeverMoreThanSoFarAhead) {
  std::atomic<int> made = 0;
  int taken = 0, most = 0;
  Prefetcher<int> numbers([&] { return ++made; }, 50, 2);
  while (taken < 50) {
    numbers.take();
    ++taken;
    // Two wait, and one may be on its way.
    most = std::max(most, made - taken);
  }
  EXPECT_LE(most, 3);
  EXPECT_EQ(made, 50) << "and no more than were asked for";
}

TEST(PrefetcherTest, ThrowsWhereTheFailureIs) {
  Prefetcher<int> numbers(
      [next = 0]() mutable {
        if (next == 3) throw std::runtime_error("line 4 is broken");
        return next++;
      },
      10, 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(numbers.take(), i);
  for (int again = 0; again < 2; ++again) {
    try {
      numbers.take();
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "line 4 is broken");
    }
  }
}

// A step that runs may leave too little memory; between two steps there is enough, or never.
TEST(PrefetcherTest, WhereMemoryIsShortTheResultIsMadeWhenItIsAwaited) {
  for (const bool stays_short : {false, true}) {
    std::atomic<bool> is_short = true;
    std::atomic<int> failures = 0;
    Prefetcher<int> numbers(
        [&, next = 0]() mutable {
          if (next == 2 && is_short) {
            ++failures;
            failures.notify_all();
            throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "the budget is full");
          }
          return next++;
        },
        4, 1);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(numbers.take(), i);
    failures.wait(0);
    is_short = stays_short;
    if (stays_short) {
      EXPECT_THROW(numbers.take(), c10::OutOfMemoryError);
      EXPECT_EQ(failures, 2);
    } else {
      for (int i = 2; i < 4; ++i) EXPECT_EQ(numbers.take(), i);
      EXPECT_EQ(failures, 1);
    }
  }
}

TEST(PrefetcherTest, EndsWhereMemoryWasShortAndNobodyWaits) {
  std::atomic<bool> has_failed = false;
  Prefetcher<int> numbers(
      [&]() -> int {
        has_failed = true;
        has_failed.notify_all();
        throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "the budget is full");
      },
      4, 1);
  has_failed.wait(false);
}

TEST(PrefetcherTest, FreesResultsThatWereNotTaken) {
  const auto watched = std::make_shared<int>(0);
  {
    Prefetcher<std::shared_ptr<int>> copies([&] { return watched; }, 1000, 4);
    copies.take();
  }
  EXPECT_EQ(watched.use_count(), 1);
}

}  // namespace
}  // namespace fleet
