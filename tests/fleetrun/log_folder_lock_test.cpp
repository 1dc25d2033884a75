// SPDX-License-Identifier: Apache-2.0
// One job per log folder: who is refused, and whose lock is taken over.

#include "tools/fleetrun/logs/log_folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
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

using namespace std::chrono_literals;

std::string refusal(const std::filesystem::path& folder, int node, const std::string& job,
                    const LogFolderLock::Options& options = {}) {
  return testing::error_message_of<UsageError>(
      [&] { LogFolderLock lock(folder, node, job, options); });
}

// As a launcher of another machine has left it; the pid is one that runs here.
void write_foreign_holder(const std::filesystem::path& file) {
  const LockRecord holder{.host = "far",
                          .host_id = "another boot",
                          .pid = ::getpid(),
                          .started = 1,
                          .since = "2026-01-02 03:04:05",
                          .job = "old"};
  std::ofstream(file) << holder.serialize();
}

TEST(LogFolderLockTest, SecondJobIsRefusedWithTheHolder) {
  const TemporaryFolder folder;
  std::string host(256, '\0');
  gethostname(host.data(), host.size());
  host.resize(host.find('\0'));
  {
    const LogFolderLock first(folder.path(), 0, "a");
    EXPECT_TRUE(says(refusal(folder.path(), 0, "b"), "[fleetrun] another job writes its logs to ",
                     format(": fleetrun with pid {} on {}, since 20", getpid(), host),
                     "  fix: choose another folder with --log_dir, or end that job"));
    EXPECT_TRUE(says(refusal(folder.path(), 1, "b"), "another job writes its logs to "))
        << "another node of another job";
  }
  const LogFolderLock after(folder.path(), 0, "b");
}

TEST(LogFolderLockTest, NodesOfOneJobShareTheFolder) {
  const TemporaryFolder folder;
  const LogFolderLock first(folder.path(), 0, "a"), second(folder.path(), 1, "a");
}

TEST(LogFolderLockTest, RefusedJobLeavesNothingBehind) {
  const TemporaryFolder folder;
  {
    const LogFolderLock first(folder.path(), 0, "a");
    EXPECT_TRUE(says(refusal(folder.path(), 1, "b"), "another job"));
  }
  const LogFolderLock third(folder.path(), 0, "c");
}

TEST(LogFolderLockTest, LockOfADeadProcessIsTakenOver) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    new LogFolderLock(folder.path(), 0, "a");
    _exit(0);  // as kill -9 would: nothing is released
  }
  waitpid(child, nullptr, 0);
  EXPECT_NE(contents(folder.path() / ".fleetrun.0"), "");
  for (const bool has_local_locks : {true, false}) {
    const LogFolderLock lock(folder.path(), 0, "b", {.has_local_locks = has_local_locks});
  }
}

TEST(LogFolderLockTest, SilentHolderOfAnotherMachineIsTakenOver) {
  const TemporaryFolder folder;
  for (const int node : {0, 1}) {
    write_foreign_holder(folder.path() / ".fleetrun.0");
    const LogFolderLock lock(folder.path(), node, "b",
                             {.heartbeat = 5ms, .silence = 30ms, .has_local_locks = false});
  }
}

TEST(LogFolderLockTest, LivingHolderOfAnotherMachineIsRefusedByItsHeartbeat) {
  const TemporaryFolder folder;
  const auto file = folder.path() / ".fleetrun.0";
  write_foreign_holder(file);
  std::atomic<bool> stop{false};
  std::thread heartbeat([&] {
    for (int64_t second = 1; !stop; ++second) {
      const timespec times[2] = {{second, 0}, {second, 0}};
      ::utimensat(AT_FDCWD, file.c_str(), times, 0);
      std::this_thread::sleep_for(5ms);
    }
  });
  // Nothing waits as long as that: the first beat decides.
  for (const int node : {0, 1})
    EXPECT_TRUE(says(refusal(folder.path(), node, "b",
                             {.heartbeat = 5ms, .silence = 60s, .has_local_locks = false}),
                     "fleetrun with pid ", " on far, since 2026-01-02 03:04:05"));
  stop = true;
  heartbeat.join();
}

TEST(LogFolderLockTest, LockThatAnotherHasTakenOverIsLeftToIt) {
  const TemporaryFolder folder;
  const auto file = folder.path() / ".fleetrun.0";
  {
    const LogFolderLock stopped(folder.path(), 0, "a");
    write_foreign_holder(file);
  }
  EXPECT_NE(contents(file), "");
}

TEST(LogFolderLockTest, HolderHasAHeartbeat) {
  const TemporaryFolder folder;
  const LogFolderLock lock(folder.path(), 0, "a", {.heartbeat = 5ms});
  const auto touched = [&] {
    struct stat about {};
    ::stat((folder.path() / ".fleetrun.0").c_str(), &about);
    return std::pair(about.st_mtim.tv_sec, about.st_mtim.tv_nsec);
  };
  const auto before = touched();
  EXPECT_TRUE(eventually([&] { return touched() != before; }));
}

TEST(LogFolderLockTest, GarbageIsNoHolder) {
  const TemporaryFolder folder;
  for (const char* text : {"", "{", "[]", "{\"job\": 3}"}) {
    std::ofstream(folder.path() / ".fleetrun.0") << text;
    const LogFolderLock lock(folder.path(), 0, "b");
  }
}

}  // namespace
}  // namespace fleet::launch
