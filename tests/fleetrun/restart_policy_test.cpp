// SPDX-License-Identifier: Apache-2.0
// fleetrun --elastic with small shells for ranks: who is started again, and how the job ends.

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/fleetrun/shell_ranks.h"
#include "tests/support/error_of.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"
#include "tools/fleetrun/options.h"

namespace fleet::launch {
namespace {

using Words = std::vector<std::string>;

// A rank writes a line for each of its lives; `$life` counts them from 1. Its process number is in
// pid.RANK.
Words elastic(const Words& flags, const std::string& script) {
  Words words = {"--nproc_per_node=2", "--elastic"};
  words.insert(words.end(), flags.begin(), flags.end());
  const std::string count =
      "echo life >> $FLEET_LOG_DIR/lives.$RANK; life=$(wc -l < $FLEET_LOG_DIR/lives.$RANK); "
      "echo $$ > $FLEET_LOG_DIR/pid.$RANK; ";
  words.insert(words.end(), {"sh", "-c", count + script});
  return words;
}

// Until that rank has come to its second life.
std::string until_back(int rank) {
  return until_written(format("lives.{}", rank)) +
         format("until [ $(wc -l < $FLEET_LOG_DIR/lives.{}) -ge 2 ]; do sleep 0.02; done; ", rank);
}

TEST(RestartPolicyTest, RankThatFailsIsStartedAgainAndTheOtherIsLeftAlone) {
  Launched job(elastic({"--max_restarts=2"},
                       "echo life $life $FLEET_ELASTIC $FLEET_MIN_RANKS; "
                       "[ $RANK = 1 ] && [ $life = 1 ] && kill -9 $$; " +
                           until_back(1)));
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_EQ(job.log(0), "life 1 1 1\n");
  EXPECT_EQ(job.log(1), "life 1 1 1\n---------- fleetrun: restart 1 of 2 ----------\nlife 2 1 1\n");
  EXPECT_TRUE(says(job.output(), "warning: rank 1 (pid ", "was ended by signal 9",
                   "the others continue; it is restarted in 1 s, 1 of 2",
                   "[fleetrun] rank 1 is restarted (pid "));
}

TEST(RestartPolicyTest, RankZeroReturnsToTheSameScreen) {
  Launched job(elastic({"--max_restarts=2"},
                       "[ $RANK = 0 ] && echo life $life; "
                       "[ $RANK = 0 ] && [ $life = 1 ] && exit 5; " +
                           until_back(0)));
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_TRUE(says(job.output(), "life 1\n", "rank 0 (pid ", "exited with code 5", "life 2\n"));
}

TEST(RestartPolicyTest, RankThatHasUsedUpItsRestartsIsNotNeeded) {
  Launched job(elastic({"--max_restarts=1"}, "[ $RANK = 1 ] && exit 5; " + until_back(1)));
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_TRUE(says(job.output(), "1 of 1", "the others continue without it, its log is "));
}

TEST(RestartPolicyTest, JobWhoseRanksAllFailEndsAtOnceOrStartsAgain) {
  Launched job(elastic({}, "[ $RANK = 1 ] && { " + until_ended(0) + " }; exit $((5 + RANK))"));
  EXPECT_EQ(job.wait(), 5) << job.output();
  EXPECT_TRUE(says(job.output(), "error: [fleetrun] rank 0 (pid "));
  Launched again(
      elastic({"--max_restarts=1"}, "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 5; sleep 0.1"));
  EXPECT_EQ(again.wait(), 0) << again.output();
  EXPECT_TRUE(says(again.output(), "restart 1 of 1"));
}

TEST(RestartPolicyTest, RanksThatFailWithinMillisecondsFailTheJob) {
  for (const char* later : {"0.001", "0.003", "0.005", "0.007", "0.009", "0.012"}) {
    Launched job(elastic({}, std::string("[ $RANK = 1 ] && sleep ") + later + "; exit 5"));
    EXPECT_EQ(job.wait(), 5) << later << " s later:\n" << job.output();
  }
}

TEST(RestartPolicyTest, RankThatNeedsARestartOfAllGetsIt) {
  Launched job(elastic({"--max_restarts=1"},
                       "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
                       "[ $RANK = 1 ] && kill -9 $$; " +
                           until_ended(1) + "exit 75"));
  EXPECT_EQ(job.wait(), 0) << job.output();
  EXPECT_TRUE(says(job.output(), "was ended by signal 9", "restart 1 of 1"));
}

TEST(RestartPolicyTest, MinRanksHasToMakeSense) {
  const auto refusal = [](const Words& words) {
    return testing::error_message_of<UsageError>([&] { parse_options(words); });
  };
  EXPECT_TRUE(says(refusal({"--min_ranks=2", "--nproc_per_node=2", "prog"}),
                   "--min_ranks needs --elastic"));
  EXPECT_TRUE(says(refusal({"--min_ranks=3", "--nproc_per_node=2", "--elastic", "prog"}),
                   "--min_ranks 3 is more than the 2 ranks there are"));
}

}  // namespace
}  // namespace fleet::launch
