// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/straggler_watch.h"

#include <gtest/gtest.h>

#include "tests/support/says.h"

namespace fleet {
namespace {

using Seconds = std::vector<double>;

const std::vector<std::string> kNames = {"rank 0 (a)", "rank 1 (b)", "rank 2 (c)", "rank 3 (d)"};

// All that is said while the same times come `times` times.
std::vector<std::string> said(StragglerWatch& watch, const Seconds& seconds, int times) {
  std::vector<std::string> lines;
  for (int i = 0; i < times; ++i) {
    for (auto& line : watch.observe(seconds)) lines.push_back(std::move(line));
  }
  return lines;
}

TEST(StragglerWatchTest, NamesARankOnceAfterFiveUpdatesInARow) {
  StragglerWatch watch(2, kNames);
  EXPECT_TRUE(said(watch, {0.1, 0.1, 0.3, 0.12}, 4).empty());
  EXPECT_TRUE(said(watch, {0.1, 0.1, 0.15, 0.12}, 1).empty()) << "in a row";
  const auto lines = said(watch, {0.1, 0.1, 0.3, 0.12}, 50);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(
      lines[0],
      "rank 2 (c) slows the others down: its own compute for an update takes 0.3 s, 3.0 times the "
      "0.1 s that ranks usually need, in the last 5 updates");
}

TEST(StragglerWatchTest, WarnsAgainWhenItIsMuchWorseAndWhenItContinues) {
  StragglerWatch watch(2, kNames);
  said(watch, {0.1, 0.1, 0.3, 0.1}, 5);
  EXPECT_TRUE(said(watch, {0.1, 0.1, 0.5, 0.1}, 20).empty());
  const auto worse = said(watch, {0.1, 0.1, 0.8, 0.1}, 20);
  ASSERT_EQ(worse.size(), 1U);
  EXPECT_TRUE(says(worse[0], "rank 2 (c) slows the others down", "8.0 times"));
  const auto well = said(watch, {0.1, 0.1, 0.11, 0.1}, 20);
  ASSERT_EQ(well.size(), 1U);
  EXPECT_EQ(well[0],
            "rank 2 (c) is as fast as the others again: 0.11 s for an update, and ranks usually "
            "need 0.1 s");
  EXPECT_EQ(said(watch, {0.1, 0.1, 0.3, 0.1}, 5).size(), 1U) << "and a relapse is named";
}

TEST(StragglerWatchTest, OfTwoRanksTheFasterIsTheMeasure) {
  StragglerWatch watch(2, {kNames[0], kNames[1]});
  const auto lines = said(watch, {0.25, 0.1}, 5);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(says(lines[0], "rank 0 (a)", "2.5 times"));
}

TEST(StragglerWatchTest, AnAverageCountsForAllItsUpdates) {
  StragglerWatch watch(2, kNames);
  const Seconds seconds = {0.1, 0.1, 0.3, 0.1};
  EXPECT_TRUE(watch.observe(seconds, 4).empty());
  EXPECT_EQ(watch.observe(seconds, 4).size(), 1U);
}

TEST(StragglerWatchTest, IsSilentWithFactorZeroAndAboutMilliseconds) {
  StragglerWatch off(0, kNames);
  EXPECT_TRUE(said(off, {0.1, 0.1, 9, 0.1}, 50).empty());
  StragglerWatch watch(2, kNames);
  EXPECT_TRUE(said(watch, {0.001, 0.001, 0.009, 0.001}, 50).empty());
}

TEST(StragglerWatchTest, RanksThatAreNotKnownCountForNothing) {
  StragglerWatch watch(2, kNames);
  EXPECT_TRUE(said(watch, {0, 0, 0.3, 0.3}, 50).empty());
  EXPECT_TRUE(said(watch, {}, 50).empty());
}

}  // namespace
}  // namespace fleet
