// SPDX-License-Identifier: Apache-2.0
// Elastic jobs: ranks are killed and stopped while the others continue, and rejoin.

#include <signal.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/rank_history.h"
#include "tests/ranks/ranks.h"
#include "tests/support/patience.h"
#include "tests/support/says.h"
#include "tests/support/two_hosts.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// A job of the elastic program.
class Training : public Launched {
 public:
  Training(int ranks, const Words& arguments, const Words& flags = {"--max_restarts=3"},
           const Words& variables = {"FLEET_TIMEOUT_S=20"})
      : Launched(words(ranks, arguments, flags), with(variables)), ranks_(ranks) {}

  RankHistory history(int rank) const { return RankHistory::in(log(rank)); }
  int ranks() const { return ranks_; }

  /// Until `rank` has made so many averages in all, or in its last process.
  bool has_averaged(int rank, size_t times) const {
    return eventually([&] { return history(rank).updates.size() >= times; }, 60s);
  }
  bool trains_again(int rank, size_t pids) const {
    return eventually(
        [&] { return history(rank).pids.size() >= pids && history(rank).is_training(); }, 60s);
  }
  /// Until all average; one that was killed just now, or was declared lost and wakes up, does not.
  bool all_train() const {
    const double soon = steady_seconds() + 0.5;
    return eventually(
        [&] {
          for (int rank = 0; rank < ranks_; ++rank) {
            const auto told = history(rank);
            if (!told.is_training() || !told.next_update_after(soon)) return false;
          }
          return true;
        },
        60s);
  }
  void send_to(int rank, int signal) const { ::kill(history(rank).pids.back(), signal); }

  /// The first average of `rank` after it has said that `lost` is gone; nothing: not yet.
  std::optional<RankHistory::Update> first_without(int lost, int rank) const {
    const auto text = log(rank);
    const auto said = text.find(format("[elastic] warning: rank {} is lost: ", lost));
    if (said == text.npos) return std::nullopt;
    const auto afterwards = RankHistory::in(text.substr(said)).updates;
    return afterwards.empty() ? std::nullopt : std::optional(afterwards.front());
  }

 private:
  static Words words(int ranks, const Words& arguments, const Words& flags) {
    Words words = {format("--nproc_per_node={}", ranks), "--elastic"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.push_back(beside("test_elastic_program"));
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }

  int ranks_;
};

constexpr double kLearned = 0.05;  // an undisturbed run of 4 epochs gets below it; it begins at 0.7

void expect_same_and_learned(const Training& training) {
  const auto first = training.history(0);
  EXPECT_GE(first.loss, 0) << training.output();
  EXPECT_LT(first.loss, kLearned);
  for (int rank = 1; rank < training.ranks(); ++rank) {
    EXPECT_EQ(training.history(rank).digest, first.digest) << "rank " << rank;
  }
}

std::string both_logs(const Training& training) {
  return training.output() + "\n--- rank 1:\n" + training.log(1);
}

TEST(ElasticTest, UndisturbedJobSaysNothingOfIt) {
  Training training(2, {"--step_ms=1"});
  ASSERT_EQ(training.wait(60s), 0) << training.output();
  expect_same_and_learned(training);
  EXPECT_EQ(training.log(0).find("[elastic]"), std::string::npos);
  EXPECT_EQ(unexpected_lines(training.log(0)) + unexpected_lines(training.log(1)), "");
}

class KilledElasticTest : public testing::TestWithParam<int> {};

TEST_P(KilledElasticTest, IsNotWaitedForAndRejoins) {
  const int victim = GetParam(), other = 1 - victim;
  const TemporaryFolder folder;
  const auto end = folder.path() / "end";
  Training training(2, {"--epochs=1000", "--until=" + end.string()});
  ASSERT_TRUE(training.has_averaged(victim, 3)) << training.output();
  training.send_to(victim, SIGKILL);
  ASSERT_TRUE(training.trains_again(victim, 2)) << both_logs(training);
  std::ofstream(end) << "now";
  ASSERT_EQ(training.wait(60s), 0) << both_logs(training);
  // Had the other one waited, its next average would have been one with the rank that came back.
  const auto alone = training.first_without(victim, other);
  ASSERT_TRUE(alone) << training.log(other);
  const auto back = training.history(victim);
  EXPECT_LT(alone->number, back.updates.at(back.updates_before).number) << both_logs(training);
  expect_same_and_learned(training);
  EXPECT_EQ(after(training.log(victim), "averages"), after(training.log(other), "averages"))
      << "a value of the program's own";
  EXPECT_EQ(training.history(other).pids.size(), 1u) << "no process was lost but the one";
  EXPECT_TRUE(says(training.log(other),
                   format("[elastic] warning: rank {} is lost: rank {} continues", victim, other)));
  EXPECT_TRUE(says(training.log(0) + training.log(1),
                   format("[elastic] rank {} has rejoined: ranks 0 1 train", victim)));
  EXPECT_TRUE(says(training.log(victim),
                   format("[elastic] rank {}: continues with the others after update ", victim)));
  EXPECT_TRUE(says(training.output(), format("warning: rank {} (pid ", victim),
                   "was ended by signal 9", "the others continue; it is restarted in 1 s, 1 of 3",
                   format("[fleetrun] rank {} is restarted (pid ", victim)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledElasticTest, testing::Values(0, 1));

TEST(ElasticTest, SeveralOptimizersAreHandedToTheRankThatRejoins) {
  const TemporaryFolder folder;
  const auto end = folder.path() / "end";
  Training training(2, {"--two", "--epochs=1000", "--until=" + end.string()});
  ASSERT_TRUE(training.has_averaged(1, 3)) << training.output();
  training.send_to(1, SIGKILL);
  ASSERT_TRUE(training.trains_again(1, 2)) << both_logs(training);
  ASSERT_TRUE(training.has_averaged(0, 96)) << both_logs(training);  // six epochs
  std::ofstream(end) << "now";
  ASSERT_EQ(training.wait(60s), 0) << both_logs(training);
  expect_same_and_learned(training);
  EXPECT_EQ(after(training.log(1), "averages"), after(training.log(0), "averages"));
  EXPECT_TRUE(
      says(training.log(1), "[elastic] rank 1: continues with the others after first's update"));
}

// Adam's moments mean little without the number of updates that they were made of.
TEST(ElasticTest, RankThatRejoinsTakesOverHowOftenParametersWereUpdated) {
  const TemporaryFolder folder;
  const auto end = folder.path() / "end";
  Training training(2, {"--epochs=1000", "--adam", "--until=" + end.string()});
  ASSERT_TRUE(training.has_averaged(1, 10)) << training.output();
  training.send_to(1, SIGKILL);
  ASSERT_TRUE(training.trains_again(1, 2)) << both_logs(training);
  std::ofstream(end) << "now";
  ASSERT_EQ(training.wait(60s), 0) << both_logs(training);
  expect_same_and_learned(training);
  const auto updates = [&](int rank) {
    const auto log = training.log(rank);
    const auto begin = log.rfind("updates of parameters ");
    return begin == log.npos ? "none" : log.substr(begin, log.find('\n', begin) - begin);
  };
  EXPECT_NE(updates(0), "none") << training.log(0);
  EXPECT_EQ(updates(1), updates(0));
}

TEST(ElasticTest, RankThatIsGoneForGoodIsNotNeeded) {
  Training training(3, {"--epochs=4"}, {"--max_restarts=0"});
  ASSERT_TRUE(training.has_averaged(1, 3)) << training.output();
  training.send_to(1, SIGKILL);
  ASSERT_EQ(training.wait(60s), 0) << training.output();
  EXPECT_EQ(training.history(0).digest, training.history(2).digest);
  EXPECT_LT(training.history(0).loss, kLearned);
  EXPECT_TRUE(says(training.output(), "the others continue without it",
                   "[elastic] warning: rank 1 is lost: ranks 0 2 continue"));
}

TEST(ElasticTest, StoppedRankIsLostAfterTheTimeLimitAndRejoins) {
  const int limit_s = patient_s(3);
  const TemporaryFolder folder;
  const auto end = folder.path() / "end";
  Training training(2, {"--epochs=1000", "--until=" + end.string()}, {"--max_restarts=3"},
                    {format("FLEET_TIMEOUT_S={}", limit_s)});
  ASSERT_TRUE(training.has_averaged(1, 3)) << training.output();
  const double stopped = steady_seconds();
  training.send_to(1, SIGSTOP);
  EXPECT_TRUE(eventually([&] { return training.first_without(1, 0).has_value(); }, 60s));
  training.send_to(1, SIGCONT);
  ASSERT_TRUE(training.trains_again(1, 2)) << both_logs(training);
  std::ofstream(end) << "now";
  ASSERT_EQ(training.wait(60s), 0) << both_logs(training);
  // Its last heartbeat came half a second before it was stopped, or earlier on a busy machine.
  EXPECT_GT(training.first_without(1, 0)->at, stopped + limit_s / 2.0)
      << "a slow rank has its time";
  expect_same_and_learned(training);
  EXPECT_TRUE(says(training.log(1),
                   format("error: [elastic] rank 1 had no heartbeat for more than {} s, and the "
                          "others have continued without it",
                          limit_s)));
}

TEST(ElasticTest, RankThatStaysStoppedIsKilledByFleetrunAndRejoins) {
  const TemporaryFolder folder;
  const auto end = folder.path() / "end";
  Training training(2, {"--epochs=1000", "--until=" + end.string()},
                    {"--max_restarts=3", format("--peer_timeout_s={}", patient_s(3))}, {});
  ASSERT_TRUE(training.has_averaged(1, 3)) << training.output();
  training.send_to(1, SIGSTOP);
  ASSERT_TRUE(training.trains_again(1, 2)) << both_logs(training);
  std::ofstream(end) << "now";
  ASSERT_EQ(training.wait(60s), 0) << both_logs(training);
  expect_same_and_learned(training);
  EXPECT_TRUE(says(training.log(0), "[elastic] warning: rank 1 is lost: rank 0 continues"));
}

TEST(ElasticTest, SigtermSavesAndTheJobResumesFromThere) {
  const TemporaryFolder folder;
  const auto dir = "--snapshot_dir=" + (folder.path() / "snapshots").string();
  {
    Training training(2, {"--epochs=1000", dir});
    ASSERT_TRUE(training.has_averaged(1, 3)) << training.output();
    training.send(SIGTERM);
    EXPECT_EQ(training.wait(60s), 143) << both_logs(training);
    EXPECT_TRUE(says(training.log(0), "[stop] all ranks stop after update ", ": saved in "));
  }
  Training training(2, {"--epochs=4", dir});
  ASSERT_EQ(training.wait(60s), 0) << both_logs(training);
  expect_same_and_learned(training);
  EXPECT_TRUE(says(training.log(0), "[snapshot] resumes after update "));
}

TEST(ElasticTest, SigtermStopsThoseWhoAreLeft) {
  const TemporaryFolder folder;
  const auto dir = "--snapshot_dir=" + (folder.path() / "snapshots").string();
  {
    Training training(3, {"--epochs=1000", dir}, {"--max_restarts=0"});
    ASSERT_TRUE(training.has_averaged(1, 3)) << training.output();
    training.send_to(0, SIGKILL);
    ASSERT_TRUE(eventually([&] { return training.first_without(0, 1).has_value(); }, 60s));
    training.send(SIGTERM);
    EXPECT_EQ(training.wait(60s), 143) << both_logs(training);
  }
  Training training(3, {"--epochs=4", dir});
  ASSERT_EQ(training.wait(60s), 0) << both_logs(training);
  expect_same_and_learned(training);
  EXPECT_TRUE(says(training.log(0), "[snapshot] was written by 2 ranks and is loaded by 3"));
}

TEST(ElasticTest, FewerThanMinRanksStartAgainFromTheLastSnapshot) {
  const TemporaryFolder folder;
  Training training(
      2,
      {"--epochs=3", "--snapshot_dir=" + (folder.path() / "snapshots").string(), "--save_every=16"},
      {"--max_restarts=3", "--min_ranks=2"});
  ASSERT_TRUE(training.has_averaged(1, 8)) << training.output();
  training.send_to(1, SIGKILL);
  ASSERT_EQ(training.wait(90s), 0) << both_logs(training);
  expect_same_and_learned(training);
  EXPECT_TRUE(says(training.log(0), "error: [elastic] 1 of 2 ranks are left, and --min_ranks is 2",
                   "[snapshot] resumes after update "));
  EXPECT_TRUE(says(training.output(), "restart 1 of 3"));
}

TEST(ElasticTest, LossBeforeLocalSgdBeginsStartsAllAgain) {
  // Which it never does: whenever the rank is killed, gradients are summed.
  Training training(2, {"--epochs=3", "--localsgd_configs.begin_step=1000000"});
  ASSERT_TRUE(eventually([&] { return training.history(1).pids.size() == 1; }, 60s));
  ASSERT_TRUE(eventually(
      [&] { return training.log(0).find("DistributedStrategy") != std::string::npos; }, 60s));
  training.send_to(1, SIGKILL);
  ASSERT_EQ(training.wait(90s), 0) << both_logs(training);
  expect_same_and_learned(training);
  EXPECT_TRUE(says(training.log(0), "error: [elastic] 1 of 2 ranks were lost "));
}

TEST(ElasticTest, SnapshotOfTheSurvivorsIsLoadedByAll) {
  const TemporaryFolder folder;
  const auto dir = "--snapshot_dir=" + (folder.path() / "snapshots").string();
  {
    Training training(2, {"--epochs=2", dir}, {"--max_restarts=0"});
    ASSERT_TRUE(training.has_averaged(1, 3)) << training.output();
    training.send_to(0, SIGKILL);
    ASSERT_EQ(training.wait(60s), 0) << both_logs(training);
  }
  Training training(2, {"--epochs=3", dir});
  ASSERT_EQ(training.wait(60s), 0) << both_logs(training);
  expect_same_and_learned(training);
  EXPECT_TRUE(says(training.log(0), "[snapshot] was written by 1 ranks and is loaded by 2"));
}

// One rank on each of two hosts: what is lost there is found out through the store alone.
TEST(ElasticTest, RanksOfAnotherHostAreLostAndComeBack) {
  const TwoHosts hosts;
  if (!hosts.refused().empty()) GTEST_SKIP() << hosts.refused();
  const TemporaryFolder folder;
  const auto end = folder.path() / "end";
  const auto start = [&](int host) {
    return std::make_unique<Launched>(
        Words{"--nnodes=2", format("--node_rank={}", host), "--master=10.77.0.1:29514",
              "--nproc_per_node=1", "--elastic", "--max_restarts=3",
              format("--peer_timeout_s={}", patient_s(5)), beside("test_elastic_program"),
              "--epochs=1000", "--until=" + end.string()},
        hosts.on(host));
  };
  const auto first = start(0), second = start(1);
  const auto history = [&](int host) {
    return RankHistory::in((host == 0 ? *first : *second).log(host));
  };
  ASSERT_TRUE(eventually([&] { return history(1).updates.size() > 2; }, 60s)) << first->output();
  ::kill(history(1).pids.back(), SIGKILL);
  ASSERT_TRUE(
      eventually([&] { return history(1).pids.size() == 2 && history(1).is_training(); }, 60s))
      << first->output() << second->output();
  std::ofstream(end) << "now";
  ASSERT_EQ(first->wait(60s), 0) << first->output();
  ASSERT_EQ(second->wait(60s), 0) << second->output();
  EXPECT_EQ(history(0).digest, history(1).digest);
  EXPECT_EQ(history(0).pids.size(), 1u);
}

// All ranks refuse alike, but the first to end may take the other with it.
std::string first_error(const Training& training) {
  return error_in(training.log(0)) + error_in(training.log(1));
}

TEST(ElasticTest, WithoutLocalSgdItIsRefused) {
  Training training(2, {"--localsgd=false"}, {});
  EXPECT_EQ(training.wait(30s), 2) << training.output();
  EXPECT_TRUE(
      says(first_error(training), "fleetrun --elastic needs localsgd or adaptive_localsgd"));
}

TEST(ElasticTest, DelayedAveragesAreRefused) {
  Training training(2, {"--localsgd_configs.delayed"}, {});
  EXPECT_EQ(training.wait(30s), 2) << training.output();
  EXPECT_TRUE(says(first_error(training), "localsgd_configs.delayed leaves no moment"));
}

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoll(text) : otherwise;
}

// Ranks are killed and stopped at random, six times, and for FLEET_SOAK_S seconds if that takes
// longer; another fate by FLEET_SOAK_SEED.
class ElasticSoakTest : public testing::TestWithParam<int> {};

constexpr int kMinFaults = 6;
constexpr int64_t kEpochsAfterwards = 8;

TEST_P(ElasticSoakTest, ConvergesWhateverHappensToItsRanks) {
  const int ranks = GetParam();
  const auto seed = static_cast<unsigned>(number_from("FLEET_SOAK_SEED", 1));
  const std::chrono::seconds length(number_from("FLEET_SOAK_S", 0));
  SCOPED_TRACE(format("FLEET_SOAK_SEED={}", seed));
  std::mt19937 random(seed);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(random);
  };
  const TemporaryFolder folder;
  const auto end = folder.path() / "end";
  Training training(ranks,
                    {"--epochs=100000", "--until=" + end.string(), "--save_every=10",
                     "--snapshot_dir=" + (folder.path() / "snapshots").string()},
                    {"--max_restarts=1000"}, {"FLEET_TIMEOUT_S=2", "OMP_NUM_THREADS=1"});
  ASSERT_TRUE(training.has_averaged(0, 2)) << training.output();
  const auto deadline = Clock::now() + length;
  int kills = 0, stops = 0;
  while (kills + stops < kMinFaults || Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(draw(50, 1500)));
    ASSERT_FALSE(is_gone(training.pid())) << both_logs(training);
    std::vector<int> there;
    for (int rank = 0; rank < ranks; ++rank) {
      if (training.history(rank).is_training()) there.push_back(rank);
    }
    if (there.size() < 2) continue;  // somebody has to know the state
    const int victim = there[static_cast<size_t>(draw(0, static_cast<int>(there.size()) - 1))];
    if (draw(0, 2) > 0) {
      training.send_to(victim, SIGKILL);
      ++kills;
    } else {
      training.send_to(victim, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(draw(0, 1) == 0 ? 300 : 6000));
      training.send_to(victim, SIGCONT);
      ++stops;
    }
  }
  EXPECT_TRUE(training.all_train()) << both_logs(training);
  const auto recovered = training.history(0).updates.back().epoch;
  EXPECT_TRUE(eventually(
      [&] { return training.history(0).updates.back().epoch > recovered + kEpochsAfterwards; },
      60s));
  std::ofstream(end) << "now";
  ASSERT_EQ(training.wait(90s), 0) << both_logs(training);
  expect_same_and_learned(training);
  Training undisturbed(ranks, {format("--epochs={}", kEpochsAfterwards), "--step_ms=0"});
  ASSERT_EQ(undisturbed.wait(90s), 0) << undisturbed.output();
  EXPECT_LT(training.history(0).loss, 2 * undisturbed.history(0).loss + 0.005)
      << "whatever happened to it before, it learns from there as well as from the start";
  RecordProperty("kills", kills);
  RecordProperty("stops", stops);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ElasticSoakTest, testing::Values(2, 4));

}  // namespace
}  // namespace fleet::launch
