// SPDX-License-Identifier: Apache-2.0
// A program of its own: it forks, which only a process without threads may do.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "fleet/snapshot/snapshot_folder.h"

#include "tests/data/temporary_folder.h"
#include "tests/snapshot/snapshot_training.h"
#include "tests/support/launched.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

pid_t run_apart(const std::function<bool()>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  bool is_well = false;
  try {
    is_well = body();
  } catch (const std::exception& error) {
    print_error(error);
  }
  ::_exit(is_well ? 0 : 1);
}

// Resumes from the newest snapshot, and saves after every update.
bool train_until_killed(const std::filesystem::path& dir) {
  TrainingRank rank({.optimizer = "Adam"}, std::make_shared<comm::Communicator>());
  Snapshots snapshots(rank.optimizer(), {.snapshot_dir = dir, .save_every = 1, .keep = 2});
  for (int64_t step = rank.optimizer().updates();; ++step) {
    rank.train(step, step + 1);
    snapshots.after_update();
  }
}

int64_t newest(const std::filesystem::path& dir) {
  const auto steps = snapshots_in(dir);
  return steps.empty() ? -1 : steps.front();
}

// The newest snapshot is the training up to there.
bool newest_is_right(const std::filesystem::path& dir, int64_t at_least) {
  const SnapshotTraining setup{.optimizer = "Adam"};
  TrainingRank rank(setup, std::make_shared<comm::Communicator>());
  const auto step = load_snapshot(dir, rank.optimizer());
  if (!step || *step != newest(dir) || *step < at_least) return false;
  TrainingRank whole(setup, std::make_shared<comm::Communicator>());
  whole.train(0, *step);
  const auto a = rank.outcome().parameters, b = whole.outcome().parameters;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

int status_of(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST(SnapshotKillTest, KillNineAtAnyMomentLeavesTheLastGoodOne) {
  const TemporaryFolder folder;
  std::mt19937_64 random(7);
  int64_t last = -1;
  int leftovers = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t pid = run_apart([&] { return train_until_killed(folder.path()); });
    ASSERT_TRUE(launch::eventually([&] { return newest(folder.path()) > last; }));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40'000));
    ::kill(pid, SIGKILL);
    ASSERT_TRUE(WIFSIGNALED(status_of(pid)));
    for (const auto& item : std::filesystem::directory_iterator(folder.path())) {
      if (item.path().filename().string().starts_with(".step-")) ++leftovers;
    }
    const pid_t check = run_apart([&] { return newest_is_right(folder.path(), last); });
    ASSERT_EQ(status_of(check), 0) << "round " << round;
    last = newest(folder.path());
  }
  EXPECT_GT(leftovers, 0) << "never killed while it wrote: the test shows little";
}

}  // namespace
}  // namespace fleet
