// SPDX-License-Identifier: Apache-2.0
// Logs of whole jobs: names, older ones, two jobs in one folder, a full disk.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"
#include "tests/support/two_hosts.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

Words in(const fs::path& folder, const Words& rest) {
  Words words = {"--log_dir=" + folder.string()};
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(LogsTest, RestartByHandKeepsTheCrashLog) {
  const TemporaryFolder folder;
  const Words crash = {"--nproc_per_node=2", "sh", "-c", "echo crash of $RANK; exit 3"};
  Launched first(in(folder.path(), crash));
  EXPECT_EQ(first.wait(), 3) << first.output();
  Launched second(in(folder.path(), {"--nproc_per_node=2", "sh", "-c", "echo well"}));
  EXPECT_EQ(second.wait(), 0) << second.output();
  for (int rank = 0; rank < 2; ++rank) {
    const auto name = format("workerlog.{}", rank);
    EXPECT_EQ(contents(folder.path() / name), "well\n");
    EXPECT_EQ(contents(folder.path() / (name + ".1")), format("crash of {}\n", rank));
  }
}

TEST(LogsTest, SecondJobInTheSameFolderIsRefusedAndTheFirstContinues) {
  const TemporaryFolder folder;
  const auto log = folder.path() / "workerlog.0";
  Launched first(in(folder.path(), {"sh", "-c", "echo first; exec sleep 600"}));
  ASSERT_TRUE(eventually([&] { return contents(log) == "first\n"; })) << first.output();
  Launched second(in(folder.path(), {"--max_restarts=3", "sh", "-c", "echo second"}));
  EXPECT_EQ(second.wait(), 2) << second.output();
  EXPECT_TRUE(says(second.output(), "error: [fleetrun] another job writes its logs to ",
                   format("fleetrun with pid {} on ", first.pid()), "  fix: "));
  EXPECT_EQ(contents(log), "first\n");

  first.send(SIGKILL);  // whose lock is then taken over
  EXPECT_EQ(first.wait(), 137);
  Launched third(in(folder.path(), {"sh", "-c", "echo third"}));
  EXPECT_EQ(third.wait(), 0) << third.output();
  EXPECT_EQ(contents(log), "third\n");
  EXPECT_EQ(contents(folder.path() / "workerlog.0.1"), "first\n");
}

TEST(LogsTest, LogThatCannotBeWrittenIsAWarningAndTrainingContinues) {
  const TemporaryFolder folder;
  fs::create_symlink("/dev/full", folder.path() / "workerlog.1");
  Launched job(in(folder.path(), {"--nproc_per_node=3", "sh", "-c",
                                  "echo one && echo two && echo done > $FLEET_LOG_DIR/end.$RANK"}));
  EXPECT_EQ(job.wait(), 0) << job.output();
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(contents(folder.path() / format("end.{}", rank)), "done\n")
        << "a rank must not notice: its own writes succeed";
  EXPECT_EQ(count(job.output(), "[fleetrun] warning: cannot write "), 1U) << job.output();
  EXPECT_TRUE(says(job.output(), "workerlog.1 (No space left on device): training continues",
                   "[fleetrun] warning: logs are not complete: ",
                   "workerlog.1 lacks 8 bytes (No space left on device)\n"));
  EXPECT_EQ(contents(folder.path() / "workerlog.2"), "one\ntwo\n");
}

TEST(LogsTest, RankThatFailsOnAFullDiskIsNamedWithItsError) {
  const TemporaryFolder folder;
  for (int rank = 0; rank < 3; ++rank)
    fs::create_symlink("/dev/full", folder.path() / format("workerlog.{}", rank));
  Launched job(in(folder.path(), {"--nproc_per_node=3", "sh", "-c",
                                  "[ $RANK = 1 ] || exit 0; echo 'error: the reason'; exit 9"}));
  EXPECT_EQ(job.wait(), 9) << job.output();
  EXPECT_TRUE(says(job.output(), "error: [fleetrun] rank 1 (pid ", "exited with code 9",
                   "    | error: the reason\n"));
}

TEST(LogsTest, StandardOutputThatCannotBeWrittenIsAWarningToo) {
  const TemporaryFolder folder;
  Started job({"sh", "-c",
               beside("fleetrun") + " --log_dir=" + folder.path().string() +
                   " sh -c 'echo one; echo two' 2> " + (folder.path() / "error").string() +
                   " > /dev/full"});
  EXPECT_NE(job.wait(), -1) << "training ends as it would";
  EXPECT_EQ(contents(folder.path() / "workerlog.0"), "one\ntwo\n");
  EXPECT_TRUE(says(contents(folder.path() / "error"),
                   "[fleetrun] warning: cannot write to standard output (No space left on device): "
                   "what rank 0 prints is in "));
}

TEST(LogsTest, ALogBeyondTheLimitOfFileSizesIsAWarning) {
  const TemporaryFolder folder;
  Started job({"sh", "-c",
               format("(ulimit -f 1; {} --log_dir={} sh -c 'seq 2000; echo end'; echo code $?) "
                      "2>&1 | cat",
                      beside("fleetrun"), folder.path().string())});
  ASSERT_EQ(job.wait(), 0);
  EXPECT_TRUE(says(job.output(), "\n2000\n", "\nend\n", "code 0\n", "warning: cannot write ",
                   "workerlog.0", "(File too large): training continues",
                   "warning: logs are not complete: "));
}

// A disk that fills and is given room again, in a mount namespace of the test's own.
TEST(LogsTest, LogContinuesWhenThereIsRoomAgain) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  const TemporaryFolder folder;
  const auto disk = (folder.path() / "disk").string();
  fs::create_directory(disk);
  const std::string script = format(
      "mount -t tmpfs -o size=64k tmpfs {0} || exit 77; "
      "{1} --log_dir={0}/log sh -c '"
      "echo begin; head -c 200000 /dev/zero | tr \"\\0\" x; echo; touch {2}/full; "
      "while [ ! -e {2}/room ]; do sleep 0.01; done; echo end' & job=$!; "
      "while [ ! -e {2}/full ]; do sleep 0.01; done; "
      "mount -o remount,size=1m {0}; touch {2}/room; wait $job; code=$?; "
      "cp {0}/log/workerlog.0 {2}/kept; exit $code",
      disk, beside("fleetrun"), folder.path().string());
  Started job({"unshare", "--mount", "sh", "-c", script});
  const int code = job.wait();
  if (code == 1 || code == 77) GTEST_SKIP() << "mounts are not permitted here";
  ASSERT_EQ(code, 0) << job.output().substr(0, 4000);
  const auto kept = contents(folder.path() / "kept");
  EXPECT_TRUE(kept.starts_with("begin\nxxx"));
  EXPECT_TRUE(kept.ends_with("end\n"));
  EXPECT_TRUE(says(kept, "\n---------- fleetrun: ",
                   " bytes are missing here (No space left on device) ----------\n"));
  EXPECT_EQ(count(job.output(), "warning: cannot write "), 1U);
}

TEST(LogsTest, NodesWithASharedFolderDoNotClash) {
  const TwoHosts hosts;
  if (const auto reason = hosts.refused(); !reason.empty()) GTEST_SKIP() << reason;
  const TemporaryFolder folder;
  const Words common = {"--nproc_per_node=2", "--ips=10.77.0.1,10.77.0.2", "sh", "-c",
                        "echo rank $RANK; exit 0"};
  Launched second(in(folder.path(), common), hosts.on(1));
  Launched first(in(folder.path(), common), hosts.on(0));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(contents(folder.path() / format("workerlog.{}", rank)), format("rank {}\n", rank));
}

TEST(LogsTest, NodeThatIsRefusedItsFolderTellsTheOthers) {
  const TwoHosts hosts;
  if (const auto reason = hosts.refused(); !reason.empty()) GTEST_SKIP() << reason;
  const TemporaryFolder folder;
  Launched holder(in(folder.path(), {"sh", "-c", "echo up; exec sleep 600"}));
  ASSERT_TRUE(eventually([&] { return contents(folder.path() / "workerlog.0") == "up\n"; }));
  const Words common = {"--ips=10.77.0.1,10.77.0.2", "sleep", "60"};
  Launched first(common, hosts.on(0));
  Launched second(in(folder.path(), common), hosts.on(1));
  EXPECT_EQ(second.wait(), 2) << second.output();
  EXPECT_EQ(first.wait(), 2) << first.output();
  EXPECT_TRUE(says(first.output(),
                   "error: [fleetrun] node 1 (10.77.0.2) cannot start its ranks: [fleetrun] "
                   "another job writes its logs to "));
}

}  // namespace
}  // namespace fleet::launch
