// SPDX-License-Identifier: Apache-2.0
// Folders of snapshots as an operator meets them: in use, read-only, full, damaged.

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

const Words kFaultThreads = with({"OMP_NUM_THREADS=1"});
constexpr auto kFaultLimit = 60s;

TEST(SnapshotFaultTest, SecondRunInAFolderIsRefusedAndTheFirstDoesNotNotice) {
  const TemporaryFolder dir;
  Launched first(recovery_job(2, dir.path(), {"--update_ms=100"}), kFaultThreads);
  ASSERT_TRUE(eventually([&] { return losses(first.log(0)).contains(1); }, kFaultLimit))
      << first.output();
  Launched second(recovery_job(2, dir.path(), {}, {"--max_restarts=3"}), kFaultThreads);
  EXPECT_EQ(second.wait(kFaultLimit), 2) << second.output();
  EXPECT_TRUE(says(
      second.output(),
      dir.path().string() + " is in use by another run: pid " + after(first.log(0), "pid") + " on ",
      ", since 20"));
  EXPECT_EQ(second.output().find("restart 1"), std::string::npos) << second.output();
  EXPECT_TRUE(losses(second.log(0)).empty());
  ASSERT_EQ(first.wait(kFaultLimit), 0) << first.output();
  EXPECT_EQ(after(first.log(0), "digest"), reference_digest(2));
  EXPECT_EQ(unexpected_lines(first.log(0)), "");
}

TEST(SnapshotFaultTest, RestartedJobIsNotRefusedByItsOwnPast) {
  const TemporaryFolder dir;
  Launched run(recovery_job(2, dir.path(), {"--fault=kill", "--fault_rank=0", "--fault_step=12"},
                            {"--max_restarts=1"}),
               kFaultThreads);
  ASSERT_EQ(run.wait(kFaultLimit), 0) << run.output();
  EXPECT_EQ(after(run.log(0), "digest"), reference_digest(2));
  EXPECT_EQ(run.output().find("in use by another run"), std::string::npos) << run.output();
}

TEST(SnapshotFaultTest, RankZeroSaysWhatWasWrittenAndWhatARankFoundDamaged) {
  const TemporaryFolder dir;
  Launched first(recovery_job(2, dir.path(), {"--epochs=2"}), kFaultThreads);
  ASSERT_EQ(first.wait(kFaultLimit), 0) << first.output();
  const auto newest = snapshot_folder(dir.path(), 20);
  EXPECT_TRUE(says(first.log(0), "[snapshot] update 20 saved: ", " s, " + newest.string()));
  std::filesystem::resize_file(newest / "rank-1.json", 5);
  Launched again(recovery_job(2, dir.path()), kFaultThreads);
  ASSERT_EQ(again.wait(kFaultLimit), 0) << again.output();
  EXPECT_TRUE(says(again.log(0), "[snapshot] warning: " + newest.string() +
                                     " is not used: rank 1: " + (newest / "rank-1.json").string() +
                                     ": it is damaged"));
  EXPECT_EQ(after(again.log(0), "resumed"), "15");
  EXPECT_EQ(after(again.log(0), "digest"), reference_digest(2));
}

/// A disk of its own for one shell script, where this machine allows it.
class SmallDiskTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a disk";
    Started trial({"unshare", "-m", "mount", "-t", "tmpfs", "none", dir_.path().string()});
    if (trial.wait() != 0) GTEST_SKIP() << "no disk can be mounted here: " << trial.output();
  }

  /// `train` with more flags in it is the training; snapshots go to disk/runs.
  std::string run(const std::string& options, const std::string& script) {
    const auto disk = dir_.path().string();
    Started shell({"unshare", "-m", "sh", "-c",
                   format("mount -t tmpfs -o {} none {} && cd {}\n"
                          "train() {{ {} --snapshot_dir {}/runs --save_every 5 \"$@\" 2>&1; "
                          "echo code $?; }}\n"
                          "export OMP_NUM_THREADS=1\n{}",
                          options, disk, disk, beside("test_recovery_program"), disk, script)});
    EXPECT_EQ(shell.wait(kFaultLimit), 0) << shell.output();
    return shell.output();
  }
  std::string runs() const { return (dir_.path() / "runs").string(); }

  TemporaryFolder dir_;
};

TEST_F(SmallDiskTest, ReadOnlyDiskIsSeenBeforeTheFirstUpdate) {
  const auto said = run("ro,size=4m", "train");
  EXPECT_TRUE(says(
      said, "error: [snapshot] --snapshot_dir: cannot write " + runs() + ": Read-only file system",
      "code 2"));
  EXPECT_TRUE(losses(said).empty()) << said;
}

TEST_F(SmallDiskTest, RoomForOneSnapshotIsSeenBeforeTheFirstUpdate) {
  const auto said = run("size=1m", "train");
  EXPECT_TRUE(says(said, "error: [snapshot] --snapshot_dir: a snapshot takes 1.0",
                   " MiB, and the disk of " + runs() + " has ", " left", "code 2"));
  EXPECT_TRUE(losses(said).empty()) << said;
}

TEST_F(SmallDiskTest, FullDiskEndsTheTrainingAndWhatWasSavedIsResumed) {
  const auto said =
      run("size=4m", "train --fault fill --fault_step 12\nls -a runs\nrm filler\ntrain");
  EXPECT_TRUE(says(said, "error: [", "cannot write " + runs() + "/.step-00000015.",
                   "No space left on device", "code 1", "step-00000010", "\nresumed 10\n"));
  const auto healed = said.substr(said.find("\nresumed 10\n"));
  EXPECT_TRUE(says(healed, "code 0"));
  EXPECT_EQ(after(healed, "digest"), reference_digest(1));
}

}  // namespace
}  // namespace fleet::launch
