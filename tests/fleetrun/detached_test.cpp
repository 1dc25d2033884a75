// SPDX-License-Identifier: Apache-2.0
// What ranks have started and sent away ends with the job.

#include <signal.h>

#include <gtest/gtest.h>

#include "tests/fleetrun/shell_ranks.h"
#include "tests/support/launched.h"

namespace fleet::launch {
namespace {

// A process in a session of its own, which no signal to a rank's group reaches.
const std::string kDetached =
    "setsid sh -c 'trap \"\" TERM HUP; echo $$ > $FLEET_LOG_DIR/pid.away; "
    "while :; do sleep 0.05; done' & ";

TEST(DetachedTest, DetachedProcessDoesNotOutliveAKilledFleetrun) {
  Launched job({"sh", "-c", kDetached + "wait"});
  const pid_t away = number_in(job, "pid.away");
  job.send(SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_TRUE(eventually([&] { return is_gone(away); }));
  kill(away, SIGKILL);
}

TEST(DetachedTest, DetachedProcessDoesNotOutliveTheJob) {
  Launched job({"--grace_s=0.1", "sh", "-c", kDetached + until_written("pid.away") + "exit 0"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  const pid_t away = number_in(job, "pid.away");
  EXPECT_TRUE(is_gone(away));
  kill(away, SIGKILL);
}

TEST(DetachedTest, ProcessWithoutTheLaunchIdIsLeftAlone) {
  Launched job({"sh", "-c",
                "env -u FLEET_LAUNCH_ID setsid sh -c 'echo $$ > $FLEET_LOG_DIR/pid.away; "
                "exec sleep 600' & " +
                    until_written("pid.away")});
  EXPECT_EQ(job.wait(), 0) << job.output();
  const pid_t away = number_in(job, "pid.away");
  EXPECT_FALSE(is_gone(away)) << "it has asked to stay";
  kill(away, SIGKILL);
}

}  // namespace
}  // namespace fleet::launch
