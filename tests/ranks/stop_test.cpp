// SPDX-License-Identifier: Apache-2.0
// Trainings that are asked to stop: SIGTERM, as schedulers send it before they take a machine away.

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"
#include "fleet/snapshot/snapshot_folder.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/recovery.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

const Words kOneThread = with({"OMP_NUM_THREADS=1"});
constexpr auto kPatience = 60s;
const Words kLocalSgd = {"--localsgd", "--localsgd_configs.k_steps=4"};

bool has_come_to(const Launched& run, int step) {
  return eventually([&] { return losses(run.log(0)).contains(step); }, kPatience);
}

Words slowly(Words arguments) {
  arguments.emplace_back("--update_ms=50");
  return arguments;
}

// The same command resumes, and ends like a run that nobody stopped.
void expect_resumes(const std::filesystem::path& dir, const Words& arguments) {
  const auto saved = snapshots_in(dir);
  ASSERT_FALSE(saved.empty());
  Launched again(recovery_job(2, dir, arguments), kOneThread);
  ASSERT_EQ(again.wait(kPatience), 0) << again.output();
  EXPECT_EQ(after(again.log(0), "resumed"), format("{}", saved.front()));
  EXPECT_EQ(after(again.log(0), "digest"), reference_digest(2, arguments));
}

TEST(StopTest, SigtermToFleetrunSavesAndLeavesInOrder) {
  const TemporaryFolder dir;
  Launched run(recovery_job(2, dir.path(), slowly({}), {"--max_restarts=3"}), kOneThread);
  ASSERT_TRUE(has_come_to(run, 6)) << run.output();
  run.send(SIGTERM);
  ASSERT_EQ(run.wait(kPatience), 143) << run.output();
  const auto step = snapshots_in(dir.path()).front();
  EXPECT_TRUE(says(run.output(), "[fleetrun] SIGTERM: ending 2 ranks, SIGKILL after 120 s",
                   format("[stop] all ranks stop after update {}: saved in ", step),
                   "[fleetrun] stopped by SIGTERM", "the same command resumes"));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(losses(run.log(rank)).rbegin()->first, step) << "the update that was saved";
    EXPECT_EQ(unexpected_lines(run.log(rank)), "");
  }
  EXPECT_EQ(run.output().find("restart 1"), std::string::npos) << run.output();
  expect_resumes(dir.path(), {});
}

// Which rank is asked, and by which signal.
class AskedRankTest : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(AskedRankTest, TakesAllOthersAlong) {
  const auto [asked, signal] = GetParam();
  const TemporaryFolder dir;
  Launched run(recovery_job(2, dir.path(), slowly({}), {"--max_restarts=3"}), kOneThread);
  ASSERT_TRUE(has_come_to(run, 6)) << run.output();
  const auto pid = after(run.log(asked), "pid");
  kill(std::stoi(pid), signal);
  ASSERT_EQ(run.wait(kPatience), 143) << run.output();
  const auto by = format("SIG{} from pid {} (", sigabbrev_np(signal), getpid());
  EXPECT_TRUE(says(
      run.output(),
      format("[fleetrun] rank {} (pid {}) was asked to stop and left in order after ", asked, pid),
      " s: " + by));
  EXPECT_EQ(run.output().find("restart 1"), std::string::npos) << run.output();
  EXPECT_TRUE(
      says(run.log(asked), format("[stop] rank {}: this rank was asked to stop: ", asked) + by));
  EXPECT_EQ(losses(run.log(0)).rbegin()->first, losses(run.log(1)).rbegin()->first);
  expect_resumes(dir.path(), {});
}

INSTANTIATE_TEST_SUITE_P(Ranks, AskedRankTest,
                         testing::Combine(testing::Values(0, 1),
                                          testing::Values(SIGTERM, SIGUSR1)));

TEST(StopTest, LocalSgdStopsAtItsNextAverage) {
  const TemporaryFolder dir;
  Launched run(recovery_job(2, dir.path(), slowly(kLocalSgd)), kOneThread);
  ASSERT_TRUE(has_come_to(run, 5)) << run.output();
  kill(std::stoi(after(run.log(1), "pid")), SIGTERM);
  ASSERT_EQ(run.wait(kPatience), 143) << run.output();
  EXPECT_EQ(snapshots_in(dir.path()).front() % 4, 0) << run.output();
  expect_resumes(dir.path(), kLocalSgd);
}

// The tenth update is the last of an epoch: what belongs to its end is done before.
TEST(StopTest, LastUpdateOfAnEpochEndsItFirst) {
  const TemporaryFolder dir;
  const Words arguments = {"--localsgd", "--localsgd_configs.k_steps=5"};
  auto asked = arguments;
  asked.insert(asked.end(), {"--fault=term", "--fault_rank=1", "--fault_step=10"});
  Launched run(recovery_job(2, dir.path(), asked), kOneThread);
  ASSERT_EQ(run.wait(kPatience), 143) << run.output();
  EXPECT_EQ(snapshots_in(dir.path()).front(), 10);
  expect_resumes(dir.path(), arguments);
}

TEST(StopTest, WithoutAFolderAllRanksJustLeave) {
  Launched run(recovery_job(2, "", {"--fault=term", "--fault_rank=1", "--fault_step=6"},
                            {"--max_restarts=3"}),
               kOneThread);
  EXPECT_EQ(run.wait(kPatience), 143) << run.output();
  EXPECT_TRUE(says(run.output(), "[stop] all ranks stop after update 6: nothing was saved"));
  EXPECT_EQ(losses(run.log(1)).rbegin()->first, 6);
}

TEST(StopTest, AProgramAloneStopsLikewise) {
  const TemporaryFolder dir;
  auto words = kOneThread;
  const auto job = recovery_job(1, dir.path(), {"--fault=term", "--fault_step=6"});
  words.insert(words.end(), job.begin() + 1, job.end());
  Started alone(words);
  EXPECT_EQ(alone.wait(kPatience), 143) << alone.output();
  EXPECT_TRUE(says(alone.output(), "[stop] all ranks stop after update 6: saved in "));
  EXPECT_EQ(snapshots_in(dir.path()).front(), 6);
}

TEST(StopTest, ASecondSigtermKillsARankThatDoesNotComeToItsEnd) {
  // Longer than anybody waits here, as is the grace of 120 s that the first one gives.
  Launched run(recovery_job(1, "", {"--update_ms=600000"}), kOneThread);
  const auto has_said = [&](std::string_view text) {
    return static_cast<bool>(says(run.output(), text));
  };
  ASSERT_TRUE(eventually([&] { return !after(run.log(0), "resumed").empty(); }, kPatience));
  run.send(SIGTERM);
  ASSERT_TRUE(eventually([&] { return has_said("ending 1 rank"); }, kPatience));
  // Soon after the first it counts as the same request: until it does not.
  EXPECT_TRUE(eventually(
      [&] {
        run.send(SIGTERM);
        return has_said("SIGTERM again: killing all ranks");
      },
      kPatience));
  EXPECT_EQ(run.wait(kPatience), 143) << run.output();
}

}  // namespace
}  // namespace fleet::launch
