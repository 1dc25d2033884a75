// SPDX-License-Identifier: Apache-2.0
// Which process is named after a signal to fleetrun or a rank.

#include <signal.h>

#include <gtest/gtest.h>

#include "fleet/core/process/stop_request.h"
#include "fleet/core/text/format.h"

#include "tests/fleetrun/shell_ranks.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"
#include "tools/fleetrun/failure.h"

namespace fleet::launch {
namespace {

using Words = std::vector<std::string>;

Words four_ranks(const std::string& script) {
  return {"--nproc_per_node=4", "sh", "-c",
          script + "echo $$ > $FLEET_LOG_DIR/pid.$RANK; while :; do sleep 0.05; done"};
}

// The others end a moment later, as ranks do whose peer is lost: those with a lower number are
// found first.
TEST(StopReportTest, RankThatIsSignalledFromOutsideIsNamed) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Launched job({"--nproc_per_node=4", "sh", "-c",
                  "echo $$ > $FLEET_LOG_DIR/pid.$RANK; [ $RANK = 2 ] && exec sleep 600; " +
                      until_ended(2) + "exit 1"});
    for (const int rank : {0, 1, 3}) number_in(job, format("pid.{}", rank));
    kill(number_in(job, "pid.2"), signal);
    EXPECT_EQ(job.wait(), 128 + signal) << job.output();
    EXPECT_TRUE(says(job.output(), "error: [fleetrun] rank 2 (pid ",
                     format("was ended by signal {} (SIG", signal), "; fleetrun did not send it"));
  }
}

// All ranks leave in order; the one that was asked says so, and need not be the first to leave.
TEST(StopReportTest, RankThatWasAskedToStopIsNamedAndNotTheFirstToLeave) {
  Launched job(
      {"--nproc_per_node=4", "sh", "-c",
       format("[ $RANK = 2 ] && echo '[stop] rank 2: {}: SIGTERM from pid 42 (scancel)' && "
              "touch $FLEET_LOG_DIR/asked; "
              "until [ -e $FLEET_LOG_DIR/asked ]; do sleep 0.01; done; exit 143",
              kAskedToStop)});
  EXPECT_EQ(job.wait(), 143) << job.output();
  EXPECT_TRUE(says(job.output(), "[fleetrun] rank 2 (pid ",
                   ") was asked to stop and left in order after ",
                   " s: SIGTERM from pid 42 (scancel); the same command resumes"));
  EXPECT_EQ(job.output().find("error:"), std::string::npos) << job.output();
}

TEST(StopReportTest, SenderOfASignalToFleetrunIsNamed) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Launched job(four_ranks(""));
    for (int rank = 0; rank < 4; ++rank) number_in(job, format("pid.{}", rank));
    job.send(signal);
    EXPECT_EQ(job.wait(), 128 + signal) << job.output();
    EXPECT_TRUE(says(job.output(), format("[fleetrun] SIG{}: ending 4 ranks", sigabbrev_np(signal)),
                     format("sent by pid {} (", getpid())));
  }
}

TEST(StopReportTest, CauseIsTheFailureThatNamesNobodyElse) {
  const Failure lost{.what = "first seen", .caused_by_peer = true}, cause{.what = "cause"};
  const Failure crash{.what = "crash", .crashed = true};
  const Failure left{.what = "left", .caused_by_peer = true, .stopped_by_user = true};
  const Failure asked{.what = "asked", .stopped_by_user = true};
  EXPECT_EQ(first_cause({lost, cause}).what, "cause");
  EXPECT_EQ(first_cause({lost, lost}).what, "first seen");
  EXPECT_EQ(first_cause({lost, cause, crash}).what, "crash");
  EXPECT_EQ(first_cause({left, crash, asked}).what, "asked");
  EXPECT_EQ(first_cause({crash, left}).what, "left");
  EXPECT_TRUE(Failure::from_json(lost.to_json()).caused_by_peer);
  EXPECT_TRUE(names_another_rank("error: [comm] rank 0: barrier failed: rank 1 has ended"));
  EXPECT_TRUE(
      names_another_rank("error: [snapshot] rank 2 could not write its part, as it says itself"));
  EXPECT_TRUE(
      names_another_rank("error: [snapshot] rank 0: --snapshot_dir: cannot write runs: No space"));
  EXPECT_FALSE(names_another_rank("error: [snapshot] cannot write model.safetensors"));
}

// Rank 0 is the first that is found, with an error about rank 1.
TEST(StopReportTest, ErrorAboutAnotherRankIsNotTheCause) {
  Launched job({"--nproc_per_node=2", "sh", "-c",
                "echo $$ > $FLEET_LOG_DIR/pid.$RANK; "
                "[ $RANK = 0 ] && echo 'error: [comm] rank 0: rank 1 has ended' && exit 1; " +
                    until_ended(0) + "echo 'error: no room on the disk'; exit 1"});
  EXPECT_EQ(job.wait(), 1) << job.output();
  EXPECT_TRUE(
      says(job.output(), "error: [fleetrun] rank 1 (pid ", "    | error: no room on the disk\n"));
}

TEST(StopReportTest, TailHoldsTheErrorAndNoFrames) {
  const std::string script =
      "[ $RANK = 0 ] && exit 0; echo 'error: the text'; "
      "echo 'Exception raised from f at a.cpp:1 (most recent call first):'; "
      "for i in $(seq 0 39); do echo \"frame #$i: f + 0x1 (0x2 in lib.so)\"; done; exit 1";
  Launched job({"--nproc_per_node=2", "sh", "-c", script}, {"env", "-u", "FLEET_BACKTRACE"});
  EXPECT_EQ(job.wait(), 1);
  EXPECT_TRUE(says(job.output(), "    | error: the text\n", "40 stack frames left out"));
  EXPECT_EQ(job.output().find("| frame #"), std::string::npos) << job.output();
  EXPECT_EQ(job.output().find("| Exception raised"), std::string::npos) << job.output();
  EXPECT_TRUE(says(job.log(1), "frame #39: ")) << "the log itself has all of it";

  Launched wanted({"--nproc_per_node=2", "sh", "-c", script}, {"env", "FLEET_BACKTRACE=1"});
  EXPECT_EQ(wanted.wait(), 1);
  EXPECT_TRUE(says(wanted.output(), "    | error: the text\n", "    | frame #39: "));
}

}  // namespace
}  // namespace fleet::launch
