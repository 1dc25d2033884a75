// SPDX-License-Identifier: Apache-2.0
// A program of its own: it forks, which only a process without threads may do.
#include "fleet/io/folder_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "fleet/comm/rendezvous/host_id.h"
#include "fleet/core/process/process_state.h"
#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using launch::contents;
using launch::eventually;
using testing::error_message_of;
using Role = FolderLock::Role;

constexpr int kRefused = 3, kFailed = 4, kTwoInside = 9;

/// A child that runs `body`, whose result is its exit code; kRefused for a UsageError.
pid_t run_apart(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  int code = kFailed;
  try {
    code = body();
  } catch (const UsageError&) {
    code = kRefused;
  } catch (const std::exception& error) {
    print_error(error);
  }
  ::_exit(code);  // nothing is unlocked by destructors outside of `body`
}

int exit_code_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// A child that has the lock until it is killed.
class Holder {
 public:
  explicit Holder(const fs::path& folder) {
    const auto sign = folder.string() + ".taken";
    pid_ = run_apart([&] {
      const FolderLock lock(folder);
      std::ofstream(sign) << "taken";
      for (;;) ::pause();
      return 0;
    });
    EXPECT_TRUE(eventually([&] { return fs::exists(sign); }));
    fs::remove(sign);
  }
  ~Holder() {
    ::kill(pid_, SIGKILL);
    exit_code_of(pid_);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

class FolderLockTest : public ::testing::Test {
 protected:
  FolderLockTest() { fs::create_directory(folder_); }

  /// A record of a process of another machine.
  static LockRecord elsewhere() {
    return {.host = "node7",
            .host_id = "another boot",
            .pid = 812,
            .since = "noon",
            .job = "j",
            .token = "t"};
  }

  TemporaryFolder parent_;
  fs::path folder_ = parent_.path() / "runs";
};

TEST_F(FolderLockTest, NewcomerIsRefusedWithHostPidAndStart) {
  const Holder holder(folder_);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { FolderLock lock(folder_); }),
                   folder_.string() + " is in use by another run: ",
                   format("pid {} on {}, since 20", holder.pid(), host.data()),
                   "--snapshot_dir of its own"));
}

TEST_F(FolderLockTest, OneProcessDoesNotHaveItTwice) {
  const FolderLock lock(folder_);
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { FolderLock second(folder_); }),
                   "this process itself"));
}

TEST_F(FolderLockTest, IsReleasedToTheNextInOrder) {
  int64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    const FolderLock lock(folder_);
    EXPECT_GT(lock.generation(), last);
    last = lock.generation();
    EXPECT_EQ(FolderLock::job_of(folder_), lock.job());
  }
  EXPECT_EQ(FolderLock::job_of(folder_), "");
  int files = 0;
  for (const auto& item : fs::directory_iterator(folder_)) files += item.exists() ? 1 : 0;
  EXPECT_EQ(files, 1);
}

TEST_F(FolderLockTest, DeadHolderIsSucceededAtOnce) {
  { const Holder holder(folder_); }
  const FolderLock lock(folder_);
  EXPECT_EQ(lock.generation(), 2);
}

TEST_F(FolderLockTest, StoppedHolderKeepsIt) {
  const Holder holder(folder_);
  ::kill(holder.pid(), SIGSTOP);
  ASSERT_TRUE(eventually([&] { return process_state(holder.pid()).is_stopped(); }));
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { FolderLock lock(folder_); }), "is in use"));
}

TEST_F(FolderLockTest, LaterProcessWithTheSamePidIsNotTheHolder) {
  auto record = LockRecord::own();
  record.started += 1;
  make_lock_file(lock_path(folder_, 1), record);
  const FolderLock lock(folder_);
  EXPECT_EQ(lock.generation(), 2);
}

TEST_F(FolderLockTest, SilentHolderOfAnotherMachineIsSucceeded) {
  make_lock_file(lock_path(folder_, 5), elsewhere());
  const FolderLock lock(folder_, Role::kHolder, {.heartbeat = 4ms, .silence = 50ms});
  EXPECT_EQ(lock.generation(), 6);
}

TEST_F(FolderLockTest, HeartbeatOfAnotherMachineRefuses) {
  make_lock_file(lock_path(folder_, 5), elsewhere());
  std::atomic<bool> ends = false;
  std::thread heart([&] {
    while (!ends) {
      ::utimensat(AT_FDCWD, lock_path(folder_, 5).c_str(), nullptr, 0);
      std::this_thread::sleep_for(1ms);
    }
  });
  EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                     FolderLock lock(folder_, Role::kHolder, {.heartbeat = 4ms, .silence = 1h});
                   }),
                   "in use by another run: pid 812 on node7, since noon"));
  ends = true;
  heart.join();
}

TEST_F(FolderLockTest, HolderOfAnotherMachineThatLeavesIsNotWaitedFor) {
  make_lock_file(lock_path(folder_, 5), elsewhere());
  std::thread leaving([&] {
    auto record = elsewhere();
    record.is_free = true;
    replace_lock_file(lock_path(folder_, 5), record);
  });
  const FolderLock lock(folder_, Role::kHolder, {.heartbeat = 4ms, .silence = 1h});
  leaving.join();
  EXPECT_EQ(lock.generation(), 6);
}

TEST_F(FolderLockTest, TouchesItsFileForOthers) {
  const FolderLock lock(folder_, Role::kHolder, {.heartbeat = 1ms});
  const auto then = read_lock_file(lock_path(folder_, 1));
  EXPECT_TRUE(
      eventually([&] { return read_lock_file(lock_path(folder_, 1))->is_touched_since(*then); }));
}

TEST_F(FolderLockTest, HalfALockFileIsWaitedFor) {
  std::ofstream(lock_path(folder_, 1)) << "fleet lock 1\nstate held\npid 1\n";
  const FolderLock lock(folder_, Role::kHolder, {.heartbeat = 4ms, .silence = 50ms});
  EXPECT_EQ(lock.generation(), 2);
}

TEST_F(FolderLockTest, HolderNoticesThatItWasTakenOver) {
  FolderLock lock(folder_);
  lock.hold();
  auto other = LockRecord::own();
  other.job = "another";
  make_lock_file(lock_path(folder_, 2), other);
  EXPECT_TRUE(says(error_message_of([&] { lock.hold(); }), "was taken over by another run",
                   format("pid {}", ::getpid())));
}

TEST_F(FolderLockTest, RemovedLockIsRecreated) {
  FolderLock lock(folder_);
  fs::remove_all(folder_);
  fs::create_directory(folder_);
  lock.hold();
  EXPECT_EQ(FolderLock::job_of(folder_), lock.job());
}

TEST_F(FolderLockTest, RanksOfAnElasticJobHaveItTogether) {
  const FolderLock::Options options{.job = "elastic", .has_members = true};
  auto first = std::make_unique<FolderLock>(folder_, Role::kHolder, options);
  FolderLock second(folder_, Role::kMember, options);
  second.hold();  // rank 0 is lost to the group, alive or not
  EXPECT_EQ(second.generation(), 2);
  first.reset();
  EXPECT_EQ(FolderLock::job_of(folder_), "elastic");
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { FolderLock lock(folder_); }), "is in use"));
}

TEST_F(FolderLockTest, HolderThatLeavesAnElasticJobLeavesItToTheMembers) {
  const FolderLock::Options options{.job = "elastic", .has_members = true};
  auto first = std::make_unique<FolderLock>(folder_, Role::kHolder, options);
  auto second = std::make_unique<FolderLock>(folder_, Role::kMember, options);
  first.reset();  // it failed, and the others continue
  EXPECT_TRUE(says(error_message_of<UsageError>([&] { FolderLock lock(folder_); }), "is in use"));
  EXPECT_EQ(FolderLock::job_of(folder_), "elastic");
  const FolderLock back(folder_, Role::kMember, options);
  second->hold();
  EXPECT_EQ(second->generation(), 2);
}

TEST_F(FolderLockTest, MemberKeepsNewcomersOutWhenTheHolderIsDead) {
  const FolderLock::Options options{.job = "elastic", .has_members = true};
  const pid_t rank_0 = run_apart([&] {
    const FolderLock lock(folder_, Role::kHolder, options);
    ::_exit(0);  // as if it had been killed
    return 0;
  });
  ASSERT_EQ(exit_code_of(rank_0), 0);
  {
    const FolderLock rank_1(folder_, Role::kMember, options);
    EXPECT_TRUE(says(error_message_of<UsageError>([&] { FolderLock lock(folder_); }),
                     format("pid {}", ::getpid())));
  }
  const FolderLock lock(folder_);
  EXPECT_EQ(lock.generation(), 2);
}

TEST_F(FolderLockTest, MemberWhoSeesAnotherFolderIsRefused) {
  const auto join = [&] { FolderLock lock(folder_, Role::kMember, {.job = "elastic"}); };
  EXPECT_TRUE(says(error_message_of<UsageError>(join), "ranks do not see the same one",
                   "a file system that they share"));
}

// All that a newcomer has seen is out of date when it acts.
TEST_F(FolderLockTest, NewcomerThatLookedLongAgoFindsTheHolder) {
  for (const bool is_held : {false, true}) {  // by a dead process, or never
    const TemporaryFolder folder;
    if (is_held) Holder holder(folder.path());
    std::unique_ptr<FolderLock> winner;
    const auto others = [&] {
      if (winner) return;
      { const FolderLock lock(folder.path()); }
      { const FolderLock lock(folder.path()); }
      winner = std::make_unique<FolderLock>(folder.path());
    };
    EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                       FolderLock(folder.path(), Role::kHolder, {.before_taking = others});
                     }),
                     "is in use by another run"));
    winner->hold();
    EXPECT_EQ(FolderLock::job_of(folder.path()), winner->job());
  }
}

TEST_F(FolderLockTest, OfManyNewcomersAtOnceExactlyOneWins) {
  constexpr int kNewcomers = 16, kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    std::array<int, 2> gate{};
    ASSERT_EQ(::pipe(gate.data()), 0);
    const auto winners = parent_.path() / format("winners-{}", round);
    std::vector<pid_t> pids;
    for (int i = 0; i < kNewcomers; ++i) {
      pids.push_back(run_apart([&] {
        ::close(gate[1]);
        char none = 0;
        if (::read(gate[0], &none, 1) != 0) return kFailed;  // until all are there
        const FolderLock lock(folder_);
        std::ofstream(winners, std::ios::app) << ::getpid() << std::endl;
        for (;;) ::pause();
        return 0;
      }));
    }
    ::close(gate[0]);
    ::close(gate[1]);
    int refused = 0;
    while (refused < kNewcomers - 1) {
      int status = 0;
      const pid_t pid = ::waitpid(-1, &status, 0);
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kRefused) << status;
      std::erase(pids, pid);
      ++refused;
    }
    EXPECT_TRUE(eventually([&] { return !contents(winners).empty(); }));
    EXPECT_EQ(contents(winners), format("{}\n", pids.front()));
    ::kill(pids.front(), SIGKILL);  // the next round finds it dead
    exit_code_of(pids.front());
  }
}

// Enters, checks that no other living process is inside, and leaves or dies there.
int enter(const fs::path& folder, const fs::path& inside, bool dies) {
  const FolderLock lock(folder);
  const int before = std::atoi(contents(inside).c_str());
  if (before > 0 && !process_state(before).has_ended()) return kTwoInside;
  std::ofstream(inside) << ::getpid();
  std::this_thread::sleep_for(200us);
  if (std::atoi(contents(inside).c_str()) != ::getpid()) return kTwoInside;
  if (dies) ::_exit(0);
  std::ofstream(inside) << 0;
  return 0;
}

TEST_F(FolderLockTest, NeverTwoInsideWhileHoldersDieAndLeaveAllTheTime) {
  constexpr int kWorkers = 4, kEntries = 15;
  const auto inside = parent_.path() / "inside";
  std::ofstream(inside) << 0;
  std::vector<pid_t> workers;
  for (int worker = 0; worker < kWorkers; ++worker) {
    workers.push_back(run_apart([&] {
      std::mt19937_64 random(static_cast<uint64_t>(worker));
      for (int entries = 0; entries < kEntries;) {
        const bool dies = random() % 2 == 0;
        const int code = exit_code_of(run_apart([&] { return enter(folder_, inside, dies); }));
        if (code != 0 && code != kRefused) return code;
        if (code == 0) ++entries;
      }
      return 0;
    }));
  }
  for (const pid_t pid : workers) EXPECT_EQ(exit_code_of(pid), 0);
  EXPECT_EQ(FolderLock(folder_).generation(), kWorkers * kEntries + 1);  // each entry is one
}

}  // namespace
}  // namespace fleet
