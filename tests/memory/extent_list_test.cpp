// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/extent_list.h"

#include <gtest/gtest.h>

namespace fleet::memory {
namespace {

TEST(ExtentListTest, MergesFreeNeighboursAndTakesTheSmallestGap) {
  ExtentList list(100);
  const auto a = *list.take(10), b = *list.take(20), c = *list.take(5), d = *list.take(30);
  EXPECT_EQ(list.end(), 65);
  list.give(a, 10);
  list.give(c, 5);
  EXPECT_EQ(list.take(5), c);
  list.give(c, 5);
  list.give(b, 20);  // a, b and c are one gap of 35 now
  EXPECT_EQ(list.take(35), a);
  EXPECT_EQ(list.take(36), std::nullopt);
  EXPECT_EQ(list.take(35), 65);
  list.give(d, 30);
  list.give(65, 35);  // the end falls back over both
  EXPECT_EQ(list.end(), 35);
  list.give(a, 35);
  EXPECT_EQ(list.end(), 0);
  EXPECT_EQ(list.used(), 0);
}

}  // namespace
}  // namespace fleet::memory
