// SPDX-License-Identifier: Apache-2.0
// A rank that is lost, and what becomes of the training under `fleetrun --max_restarts`.

#include <signal.h>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/recovery.h"
#include "tests/support/patience.h"
#include "tests/support/says.h"
#include "tests/support/two_hosts.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

const Words kOneThread = with({"OMP_NUM_THREADS=1"});
constexpr auto kPatience = 60s;

struct Accident {
  std::string kind;
  int rank = 0;
  std::string said;  // by fleetrun, of that rank
  Words strategy = {};
};

class RestartTest : public testing::TestWithParam<Accident> {};

TEST_P(RestartTest, EndsWithTheBitsOfAnUndisturbedRun) {
  const auto& accident = GetParam();
  const TemporaryFolder dir;
  auto arguments = accident.strategy;
  arguments.push_back("--fault=" + accident.kind);
  arguments.push_back(format("--fault_rank={}", accident.rank));
  arguments.push_back("--fault_step=12");
  arguments.push_back("--update_ms=20");  // the last snapshot is on the disk by then
  // Within it both ranks have to start again, too.
  const auto limit = format("--peer_timeout_s={}", patient_s(3));
  Launched run(recovery_job(2, dir.path(), arguments, {"--max_restarts=2", limit}), kOneThread);
  ASSERT_EQ(run.wait(kPatience), 0) << run.output();
  const auto text = run.output();
  EXPECT_TRUE(says(text, format("[fleetrun] warning: rank {} (pid ", accident.rank), accident.said,
                   ": restart 1 of 2", "[snapshot] resumes after update "));
  EXPECT_EQ(text.find("restart 2 of 2"), text.npos) << text;
  EXPECT_EQ(after(run.log(0), "digest"), reference_digest(2, accident.strategy));
}

const Words kLocalSgd = {"--localsgd", "--localsgd_configs.k_steps=4"};
INSTANTIATE_TEST_SUITE_P(Faults, RestartTest,
                         testing::Values(Accident{"kill", 0, "was ended by signal 9 (SIGKILL"},
                                         Accident{"kill", 1, "was ended by signal 9 (SIGKILL"},
                                         Accident{"stop", 0, "is stopped (SIGSTOP or a debugger)"},
                                         Accident{"stop", 1, "is stopped (SIGSTOP or a debugger)"},
                                         Accident{"throw", 1, "exited with code 1"},
                                         Accident{"memory", 1, "exited with code 1"},
                                         Accident{"kill", 1, "was ended by signal 9 (SIGKILL",
                                                  kLocalSgd}),
                         [](const auto& info) {
                           return format("{}{}{}", info.param.kind, info.param.rank,
                                         info.param.strategy.empty() ? "" : "LocalSgd");
                         });

TEST(RestartTest, WrongCommandLineIsNotTriedAgain) {
  Launched run(recovery_job(2, "", {"--no_such_flag"}, {"--max_restarts=5"}), kOneThread);
  EXPECT_EQ(run.wait(kPatience), 2) << run.output();
  EXPECT_TRUE(says(run.output(), "exited with code 2",
                   "that code means a mistake in the command line or configuration, which a "
                   "restart does not fix"));
  EXPECT_EQ(run.output().find("restart 1"), std::string::npos) << run.output();
}

TEST(RestartTest, StoppedRankIsSeenLongBeforeItsPeersGiveUp) {
  const TemporaryFolder dir;
  Launched run(recovery_job(2, dir.path(),
                            {"--fault=stop", "--fault_rank=1", "--fault_step=3", "--update_ms=60"}),
               kOneThread);
  ASSERT_TRUE(eventually([&] {
    return static_cast<bool>(
        says(run.output(), "is stopped (SIGSTOP or a debugger); its peers wait for it for 600 s"));
  })) << run.output();
  kill(std::stoi(after(run.log(1), "pid")), SIGCONT);
  EXPECT_EQ(run.wait(kPatience), 0) << run.output();
  EXPECT_TRUE(says(run.output(), ") runs again\n"));
}

// A rank that cannot write its part of a snapshot, and one that learns it from there: both end at
// the same time, and the first is named. There was room when the training began.
TEST(RestartTest, RankWithoutRoomForItsSnapshotIsNamed) {
  for (const int full : {0, 1}) {
    const TemporaryFolder dir;
    Launched run(recovery_job(2, dir.path(), {"--update_ms=60"}),
                 with({"OMP_NUM_THREADS=1", "FLEET_SHARED_MEMORY=0"}));
    ASSERT_TRUE(eventually([&] { return losses(run.log(full)).contains(1); })) << run.output();
    const rlimit limit{4096, 4096};
    ASSERT_EQ(prlimit(std::stoi(after(run.log(full), "pid")), RLIMIT_FSIZE, &limit, nullptr), 0);
    EXPECT_EQ(run.wait(kPatience), 1) << run.output();
    EXPECT_TRUE(says(run.output(), format("error: [fleetrun] rank {} (pid ", full)));
    EXPECT_TRUE(says(error_in(run.log(full)), "File too large")) << run.log(full);
  }
}

class TwoHostsRecoveryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = hosts_.refused(); !reason.empty()) GTEST_SKIP() << reason;
  }

  std::unique_ptr<Launched> start(int node) const {
    auto before = hosts_.on(node);
    before.insert(before.end(), kOneThread.begin(), kOneThread.end());
    return std::make_unique<Launched>(
        recovery_job(
            1, dir_.path(), {"--update_ms=50"},
            {"--nnodes=2", format("--node_rank={}", node), "--master=10.77.0.1:29513",
             "--max_restarts=3", format("--peer_timeout_s={}", patient_s(3)), "--grace_s=1"}),
        before);
  }
  bool second_has_come_to(const Launched& node, int step) const {
    return eventually([&] { return losses(node.log(1)).contains(step); }, kPatience);
  }

  TwoHosts hosts_;
  TemporaryFolder dir_;
};

TEST_F(TwoHostsRecoveryTest, ItsPlaceIsKeptUntilItRejoins) {
  auto first = start(0), second = start(1);
  ASSERT_TRUE(second_has_come_to(*second, 12)) << first->output();
  second->send(SIGKILL);
  second->wait();
  ASSERT_TRUE(eventually(
      [&] { return static_cast<bool>(says(first->output(), "waiting for node 1 (10.77.0.2)")); },
      kPatience))
      << first->output();
  second = start(1);
  EXPECT_EQ(first->wait(kPatience), 0) << first->output();
  EXPECT_EQ(second->wait(kPatience), 0) << second->output();
  // A save begins when the one before is on the disk: that of update 5 is, that of update 10 may
  // be.
  EXPECT_TRUE(says(first->output(), "[snapshot] resumes after update "));
  EXPECT_EQ(after(first->log(0), "digest"), reference_digest(2));
}

TEST_F(TwoHostsRecoveryTest, ACutLinkIsMendedByStartingThatNodeAgain) {
  auto first = start(0), second = start(1);
  ASSERT_TRUE(second_has_come_to(*second, 12)) << first->output();
  ASSERT_TRUE(hosts_.unplug(1));
  EXPECT_EQ(second->wait(kPatience), 1) << second->output();
  EXPECT_TRUE(says(second->output(), "node 0 (10.77.0.1)"));
  ASSERT_TRUE(hosts_.plug_in(1));
  second = start(1);
  EXPECT_EQ(first->wait(kPatience), 0) << first->output();
  EXPECT_EQ(second->wait(kPatience), 0) << second->output();
  EXPECT_EQ(after(first->log(0), "digest"), reference_digest(2));
}

TEST_F(TwoHostsRecoveryTest, SigtermOnOneOfThemStopsBothInOrder) {
  auto first = start(0), second = start(1);
  ASSERT_TRUE(second_has_come_to(*second, 7)) << first->output();
  second->send(SIGTERM);
  EXPECT_EQ(second->wait(kPatience), 143) << second->output();
  EXPECT_EQ(first->wait(kPatience), 143) << first->output();
  EXPECT_TRUE(says(first->output(), "[stop] all ranks stop after update ", ": saved in "));
  first = start(0), second = start(1);
  EXPECT_EQ(first->wait(kPatience), 0) << first->output();
  EXPECT_EQ(second->wait(kPatience), 0) << second->output();
  EXPECT_EQ(after(first->log(0), "digest"), reference_digest(2));
}

}  // namespace
}  // namespace fleet::launch
