// SPDX-License-Identifier: Apache-2.0
// The log of one rank: what happens to those of earlier jobs, and on a full disk.

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"
#include "tools/fleetrun/logs/worker_logs.h"

namespace fleet::launch {
namespace {

namespace fs = std::filesystem;

void run_job(const fs::path& folder, const std::string& text, int keep) {
  WorkerLog log(folder, 3, {.keep = keep});
  log.append(text);
}

TEST(WorkerLogTest, LogsOfEarlierJobsStayUpToABound) {
  const TemporaryFolder folder;
  for (const char* text : {"first", "second", "third", "fourth"}) run_job(folder.path(), text, 2);
  EXPECT_EQ(contents(folder.path() / "workerlog.3"), "fourth");
  EXPECT_EQ(contents(folder.path() / "workerlog.3.1"), "third");
  EXPECT_EQ(contents(folder.path() / "workerlog.3.2"), "second");
  EXPECT_FALSE(fs::exists(folder.path() / "workerlog.3.3"));
}

TEST(WorkerLogTest, EmptyLogTakesNoPlace) {
  const TemporaryFolder folder;
  for (const char* text : {"crash", "", "", "now"}) run_job(folder.path(), text, 2);
  EXPECT_EQ(contents(folder.path() / "workerlog.3"), "now");
  EXPECT_EQ(contents(folder.path() / "workerlog.3.1"), "crash");
}

TEST(WorkerLogTest, NoneIsKeptOnRequest) {
  const TemporaryFolder folder;
  for (const char* text : {"first", "second"}) run_job(folder.path(), text, 0);
  EXPECT_EQ(contents(folder.path() / "workerlog.3"), "second");
  EXPECT_FALSE(fs::exists(folder.path() / "workerlog.3.1"));
}

TEST(WorkerLogTest, FullDiskIsToldOnceAndTheTailIsKept) {
  const TemporaryFolder folder;
  for (const char* name : {"workerlog.0", "workerlog.1"})
    fs::create_symlink("/dev/full", folder.path() / name);
  WorkerLogs logs(folder.path(), 0, 2, {});
  EXPECT_FALSE(logs.new_write_error()) << "nothing was printed yet";
  for (size_t rank = 0; rank < 2; ++rank) {
    logs[rank].begin_attempt(0, 0);
    logs[rank].append("step 1\n");
    logs[rank].append("error: the reason\n");
  }
  const auto trouble = logs.new_write_error();
  ASSERT_TRUE(trouble);
  EXPECT_TRUE(says(*trouble, "cannot write ",
                   "/workerlog.0 (No space left on device): training "
                   "continues; what ranks print now is missing"));
  EXPECT_FALSE(logs.new_write_error());
  EXPECT_EQ(logs[1].tail(), (std::vector<std::string>{"step 1", "error: the reason"}));
  ASSERT_TRUE(logs.missing());
  EXPECT_TRUE(says(*logs.missing(), "workerlog.0 lacks 25 bytes (No space left on device), ",
                   "workerlog.1 lacks 25 bytes (No space left on device)"));
}

TEST(WorkerLogTest, RestartIsALineAndTheTailBeginsAnew) {
  const TemporaryFolder folder;
  WorkerLog log(folder.path(), 0, {});
  log.begin_attempt(0, 1);
  log.append("error: first\n");
  log.begin_attempt(1, 1);
  log.append("second\n");
  EXPECT_EQ(log.tail(), std::vector<std::string>{"second"});
  EXPECT_EQ(contents(folder.path() / "workerlog.0"),
            "error: first\n---------- fleetrun: restart 1 of 1 ----------\nsecond\n");
}

TEST(WorkerLogTest, FileThatMayNotBeWrittenIsAWrongCommandLine) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "workerlog.0");
  EXPECT_TRUE(
      says(testing::error_message_of<UsageError>([&] { WorkerLog log(folder.path(), 0, {}); }),
           "[fleetrun] cannot write ", "/workerlog.0 (Is a directory)\n",
           "  fix: choose another folder with --log_dir"));
  fs::remove(folder.path() / "workerlog.0");
  ASSERT_EQ(::mkfifo((folder.path() / "workerlog.0").c_str(), 0600), 0);
  EXPECT_TRUE(
      says(testing::error_message_of<UsageError>([&] { WorkerLog log(folder.path(), 0, {}); }),
           "/workerlog.0 (No such device or address)\n"));
}

}  // namespace
}  // namespace fleet::launch
