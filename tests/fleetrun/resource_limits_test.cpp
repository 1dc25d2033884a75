// SPDX-License-Identifier: Apache-2.0
// Limits of open files and processes: raised, or refused with the number.

#include "tools/fleetrun/process/resource_limits.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

constexpr JobSize kSixteen{.local_ranks = 16, .world_size = 16};

TEST(ResourceLimitsTest, StoreCountsOnTheNodeThatHostsIt) {
  const auto host = files_needed({.local_ranks = 8, .world_size = 64, .nodes = 8}, 10);
  const auto other =
      files_needed({.local_ranks = 8, .world_size = 64, .nodes = 8, .hosts_store = false}, 10);
  EXPECT_EQ(host.launcher - other.launcher, 4 * 64 + 2 * 7);
  EXPECT_EQ(host.rank, other.rank);
  EXPECT_EQ(host.breakdown,
            "32 of its own, 16 for the output of 8 ranks, 270 for connections of 64 ranks to the "
            "store");
}

TEST(ResourceLimitsTest, SoftLimitIsRaisedAndNeverLowered) {
  const auto need = files_needed(kSixteen, 10);  // 128, and 188 for a rank
  EXPECT_EQ(decide_files(need, {64, 20000}, kSixteen).soft, 188U);
  EXPECT_EQ(decide_files(need, {1024, 20000}, kSixteen).soft, 1024U);
  const auto narrow = decide_files(need, {64, 150}, kSixteen);
  EXPECT_EQ(narrow.soft, 150U);
  EXPECT_EQ(narrow.warning,
            "a rank may need 188 open files (4 connections to each of 15 peers and 128 more), and "
            "the hard limit is 150 (ulimit -Hn)");
}

TEST(ResourceLimitsTest, HardLimitThatIsTooLowIsRefusedWithTheNumber) {
  EXPECT_EQ(testing::error_message_of<UsageError>([] {
              decide_files(files_needed(kSixteen, 10), {64, 64}, kSixteen);
            }),
            "[fleetrun] fleetrun needs 128 open files for 16 ranks (32 of its own, 32 for the "
            "output of 16 ranks, 64 for connections of 16 ranks to the store), and the hard limit "
            "is 64\n"
            "  fix: raise the hard limit to 128 (ulimit -Hn as root, /etc/security/limits.conf, or "
            "LimitNOFILE of a service), or start fewer ranks");
}

TEST(ResourceLimitsTest, ProcessesOfTheUserCount) {
  const auto need = processes_needed(kSixteen, 100, 1);
  EXPECT_EQ(decide_processes(need, {110, 1000}, kSixteen).soft, 100U + 6 + 16 * 13);
  EXPECT_TRUE(says(decide_processes(need, {110, 200}, kSixteen).warning,
                   "16 ranks may need 314 processes and threads"));
  EXPECT_TRUE(
      says(testing::error_message_of<UsageError>([&] {
             decide_processes(need, {110, 110}, kSixteen);
           }),
           "fleetrun needs 122 processes and threads of this user for 16 ranks (100 that run "
           "already, 6 of its own, 16 ranks), and the hard limit is 110"));
}

TEST(ResourceLimitsTest, ControlGroupWithTheLeastRoomCounts) {
  const TemporaryFolder root;
  const auto write = [&](const std::string& name, const std::string& text) {
    const auto file = root.path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  };
  EXPECT_FALSE(pids_limit(root.path()));
  write("proc/self/cgroup", "0::/job/step");
  write("sys/fs/cgroup/job/step/pids.max", "max");
  write("sys/fs/cgroup/job/step/pids.current", "3");
  EXPECT_FALSE(pids_limit(root.path()));
  write("sys/fs/cgroup/job/pids.max", "20");
  write("sys/fs/cgroup/job/pids.current", "5");
  write("sys/fs/cgroup/pids.max", "1000");
  write("sys/fs/cgroup/pids.current", "100");
  const auto limit = pids_limit(root.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->group, "/job");
  EXPECT_EQ(limit->room(), 15);
  const auto need = processes_needed(kSixteen, limit->used, 1);
  EXPECT_EQ(
      testing::error_message_of<UsageError>([&] { decide_group(need, *limit, kSixteen); }),
      "[fleetrun] fleetrun needs 27 processes and threads for 16 ranks (5 that run already, 6 "
      "of its own, 16 ranks), and control group /job allows 20\n"
      "  fix: raise its pids.max to 219 (docker --pids-limit, TasksMax of a service), or "
      "start fewer ranks");

  write("proc/self/cgroup", "4:pids:/old\n3:cpu:/else");
  write("sys/fs/cgroup/pids/old/pids.max", "40");
  write("sys/fs/cgroup/pids/old/pids.current", "5");
  EXPECT_EQ(pids_limit(root.path())->group, "/old");
  EXPECT_TRUE(says(decide_group(need, *pids_limit(root.path()), kSixteen).warning,
                   "control group /old allows 40 (pids.max)"));
}

TEST(ResourceLimitsTest, LowSoftLimitIsRaisedForFleetrunAndItsRanks) {
  Launched job({"--nproc_per_node=16", "sh", "-c", "ulimit -Sn"}, {"prlimit", "--nofile=64:4096"});
  ASSERT_EQ(job.wait(), 0) << job.output();
  for (int rank = 0; rank < 16; ++rank) EXPECT_GE(std::stoi(job.log(rank)), 128);
}

TEST(ResourceLimitsTest, LowHardLimitIsRefusedAtOnceAndNotTriedAgain) {
  Launched job({"--nproc_per_node=16", "--max_restarts=3", "true"}, {"prlimit", "--nofile=64:64"});
  EXPECT_EQ(job.wait(), 2) << job.output();
  EXPECT_TRUE(says(job.output(), "open files for 16 ranks (", "and the hard limit is 64\n",
                   "  fix: raise the hard limit to "));
  EXPECT_EQ(job.output().find("restart 1"), std::string::npos);
}

// Not even fleetrun's own first pipe could be made.
TEST(ResourceLimitsTest, LimitBelowWhatFleetrunItselfNeedsIsRefusedByItsNumber) {
  // Descriptors that were inherited would be too many for the loader of libraries already.
  Launched job({"true"},
               {"bash", "-c",
                "for fd in /proc/self/fd/*; do fd=${fd##*/}; [ $fd -lt 3 ] || eval \"exec "
                "$fd>&-\"; done; exec prlimit --nofile=5:5 \"$@\"",
                "bash"});
  EXPECT_EQ(job.wait(), 2) << job.output();
  EXPECT_TRUE(
      says(job.output(), "fleetrun needs 38 open files for 1 rank (", "and the hard limit is 5\n"));
}

TEST(ResourceLimitsTest, LimitThatMayBeTooLowForARankIsWarnedOfOnce) {
  Launched job({"true"}, {"prlimit", "--nofile=64:64"});
  EXPECT_EQ(job.wait(), 0) << job.output();
  const auto text = job.output();
  const auto at = text.find("a rank may need 128 open files");
  EXPECT_NE(at, text.npos) << text;
  EXPECT_EQ(text.find("a rank may need", at + 1), text.npos) << text;
}

TEST(ResourceLimitsTest, LimitOfProcessesIsRefusedByItsNumber) {
  if (geteuid() != 0) GTEST_SKIP() << "another user's limit needs root";
  const auto folder = std::filesystem::temp_directory_path() / format("fleet_nobody_{}", getpid());
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  {
    Launched job({"--log_dir=" + folder.string(), "--nproc_per_node=16", "true"},
                 {"prlimit", "--nproc=12:12", "setpriv", "--reuid=65531", "--regid=65531",
                  "--clear-groups", "--inh-caps=-all"});
    EXPECT_EQ(job.wait(), 2) << job.output();
    EXPECT_TRUE(says(job.output(), "processes and threads of this user for 16 ranks (",
                     "and the hard limit is 12\n"));
  }
  std::filesystem::remove_all(folder);
}

TEST(ResourceLimitsTest, SixtyFourRanksRunAndTheirShareOfTheCoresIsTold) {
  Launched job({"--nproc_per_node=64", "sh", "-c", "echo $RANK of $WORLD_SIZE"},
               {"taskset", "-c", "0", "prlimit", "--nofile=64:4096"});
  ASSERT_EQ(job.wait(), 0) << job.output();
  for (int rank = 0; rank < 64; ++rank) EXPECT_EQ(job.log(rank), format("{} of 64\n", rank));
  EXPECT_TRUE(says(job.output(), "[fleetrun] ranks 0 to 63 of 64 here, 64 ranks share 1 core; "));
}

// Each has a connection to the store, of which fleetrun holds the other end.
TEST(ResourceLimitsTest, SixtyFourRanksMeetInTheStore) {
  Launched job({"--nproc_per_node=64", beside("test_fleetrun_store_rank"), "barrier"},
               {"prlimit", "--nofile=64:4096"});
  ASSERT_EQ(job.wait(std::chrono::seconds(180)), 0) << job.output();
  for (int rank = 0; rank < 64; ++rank)
    EXPECT_TRUE(says(job.log(rank), format("rank {} has met all 64\n", rank)));
}

}  // namespace
}  // namespace fleet::launch
