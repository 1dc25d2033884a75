// SPDX-License-Identifier: Apache-2.0
// Ranks that die, stop or stay away in the middle of training: who says what, how fast, and what is
// left behind.

#include <signal.h>

#include <regex>

#include <gtest/gtest.h>

#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/core/text/format.h"

#include "tests/ranks/ranks.h"
#include "tests/support/patience.h"
#include "tests/support/says.h"
#include "tests/support/two_hosts.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 50s;  // shorter than what ranks of these tests sleep, or wait for by default

const std::string kWhileReducing =
    R"(\[comm\] rank \d+: all_reduce of gradient bucket 1 of 1 \(\d+ x Float, [0-9.]+ KB\) )"
    R"(failed after [0-9.]+ s \(since \d\d:\d\d:\d\d\): )";

testing::AssertionResult matches(const std::string& text, const std::string& pattern) {
  if (std::regex_search(text, std::regex(pattern))) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << text << "\" does not match \"" << pattern << "\"";
}

// Which rank dies, and whether gradients go through shared memory or through sockets.
class KilledRankTest : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(KilledRankTest, IsNamedByItsPeerAndByFleetrun) {
  const auto [victim, shared_memory] = GetParam();
  const int survivor = 1 - victim;
  Launched training(job(2, {"fault", "kill", format("{}", victim), "5"}),
                    with({format("FLEET_SHARED_MEMORY={}", shared_memory ? 1 : 0)}));
  EXPECT_EQ(training.wait(kLong), 137) << "long before the time limit\n" << training.output();
  const auto pid = after(training.log(victim), "pid");
  EXPECT_TRUE(
      matches(error_in(training.log(survivor)),
              kWhileReducing + format(R"(rank {} \([^,]+, pid {}\) has ended\n)", victim, pid)))
      << training.log(survivor);
  EXPECT_EQ(unexpected_lines(training.log(victim)), "");
  EXPECT_TRUE(says(
      training.output(),
      format("error: [fleetrun] rank {} (pid {}) was ended by signal 9 (SIGKILL", victim, pid)));
}

INSTANTIATE_TEST_SUITE_P(Ranks, KilledRankTest,
                         testing::Combine(testing::Values(0, 1), testing::Bool()));

// In the middle of a small collective, through shared memory and through sockets: the same error.
class FaultInSmallCallTest : public testing::TestWithParam<bool> {
 protected:
  Words variables(const Words& more = {}) const {
    Words all{format("FLEET_SHARED_MEMORY={}", GetParam() ? 1 : 0)};
    all.insert(all.end(), more.begin(), more.end());
    return with(all);
  }
  const std::string failed_ =
      R"(\[comm\] rank 0: all_reduce of numbers \(16 x Double, 0\.1 KB\) failed after [0-9.]+ s )"
      R"(\(since \d\d:\d\d:\d\d\): rank 1 \([^,]+, pid )";
};

TEST_P(FaultInSmallCallTest, KilledRankIsNamed) {
  Launched ranks(job(2, {"sums", "kill", "1", "500"}), variables());
  EXPECT_EQ(ranks.wait(kLong), 137) << "long before the time limit\n" << ranks.output();
  EXPECT_TRUE(
      matches(error_in(ranks.log(0)), failed_ + after(ranks.log(1), "pid") + R"(\) has ended\n)"))
      << ranks.log(0);
}

TEST_P(FaultInSmallCallTest, StoppedRankIsNamedAtTheTimeLimit) {
  Launched ranks(job(2, {"sums", "stop", "1", "500"}),
                 variables({format("FLEET_TIMEOUT_S={}", patient_s(3))}));
  EXPECT_EQ(ranks.wait(kLong), 1) << ranks.output();
  EXPECT_TRUE(matches(error_in(ranks.log(0)),
                      failed_ + after(ranks.log(1), "pid") + R"(\) is stopped \(SIGSTOP)"))
      << ranks.log(0);
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, FaultInSmallCallTest, testing::Bool());

TEST(FaultTest, SeveralRanksPerCoreMakeProgress) {
  Launched ranks(job(6, {"sums", "none", "-1", "-1"}));
  EXPECT_EQ(ranks.wait(kLong), 0) << ranks.output();
  for (int rank = 0; rank < 6; ++rank) EXPECT_TRUE(says(ranks.log(rank), "all sums")) << rank;
}

// One failure takes all ranks down. Those that notice only that a survivor has left still name the
// first one, or are ended by fleetrun before they say anything.
TEST(FaultTest, NoSurvivorOfFourNamesAnotherSurvivor) {
  Launched training(job(4, {"fault", "kill", "2", "5"}));
  EXPECT_EQ(training.wait(), 137) << training.output();
  int spoke = 0;
  for (const int survivor : {0, 1, 3}) {
    const auto error = error_in(training.log(survivor));
    if (error.empty()) continue;
    ++spoke;
    EXPECT_TRUE(matches(error, R"(: rank 2 \([^,]+, pid \d+\) has ended\n)"));
  }
  EXPECT_GE(spoke, 1) << training.output();
}

TEST(FaultTest, StoppedRankIsCalledStoppedAndIsNotLeftBehind) {
  const int limit_s = patient_s(3);
  Launched training(job(2, {"fault", "stop", "1", "5"}),
                    with({format("FLEET_TIMEOUT_S={}", limit_s)}));
  EXPECT_EQ(training.wait(kLong), 1) << training.output();
  EXPECT_TRUE(matches(error_in(training.log(0)),
                      kWhileReducing + R"(rank 1 \([^,]+, pid \d+\) is stopped \(SIGSTOP)"))
      << training.log(0);
  EXPECT_TRUE(
      says(training.log(0), format("the limit for a call is {} s (FLEET_TIMEOUT_S)", limit_s)));
  EXPECT_TRUE(is_gone(std::stoi(after(training.log(1), "pid"))));
}

TEST(FaultTest, ErrorOfOneRankIsNotHiddenByTheOthers) {
  for (const int thrower : {0, 1}) {
    Launched training(job(2, {"fault", "throw", format("{}", thrower), "5"}));
    EXPECT_EQ(training.wait(), 1) << training.output();
    const std::string own = "[app] sample 7 is not a picture\n";
    EXPECT_TRUE(says(training.log(thrower), "error: " + own + "  fix: remove it\n"));
    const auto& text = training.output();
    EXPECT_TRUE(
        says(text, format("error: [fleetrun] rank {} (pid ", thrower), ") exited with code 1"));
    if (thrower == 1) {
      EXPECT_TRUE(says(text, "    | error: " + own + "    |   fix: remove it\n"));
    }
    EXPECT_TRUE(
        says(error_in(training.log(1 - thrower)), format(": rank {} (", thrower), "has ended"));
  }
}

TEST(FaultTest, ErrorIsHeardWhileACollectiveIsUnderWay) {
  Launched training(job(2, {"throw_while_pending"}));
  EXPECT_EQ(training.wait(kLong), 1) << "without waiting for the collective";
  EXPECT_TRUE(says(training.output(), "error: [fleetrun] rank 1 (pid ",
                   ") exited with code 1 after ",
                   "    | error: [app] sample 7 is not a picture\n"));
}

TEST(FaultTest, ExitInMidTrainingIsPassedOn) {
  Launched training(job(2, {"fault", "exit", "1", "5"}));
  EXPECT_EQ(training.wait(), 3) << training.output();
  EXPECT_TRUE(says(error_in(training.log(0)), ": rank 1 (", "has ended"));
}

TEST(FaultTest, AbsentRankIsNamed) {
  for (const char* mode : {"absent", "early_exit"}) {
    const int limit_s = patient_s(4);
    Launched ranks(job(3, {mode}), with({format("FLEET_TIMEOUT_S={}", limit_s)}));
    EXPECT_EQ(ranks.wait(kLong), 1) << ranks.output();
    EXPECT_TRUE(matches(error_in(ranks.log(0)),
                        format(R"(\[comm\] rank 0 waited {} s at 127\.0\.0\.1:\d+, )", limit_s) +
                            R"(and of 3 ranks rank 1 did not arrive\n)"))
        << ranks.log(0);
  }
}

TEST(FaultTest, RankZeroThatNobodyStartedIsNamed) {
  const int port = comm::Store::host(0, 1s).port();
  Started second(by_hand({"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                          format("MASTER_PORT={}", port), "FLEET_TIMEOUT_S=1"},
                         {"calls"}));
  EXPECT_EQ(second.wait(), 1);
  EXPECT_TRUE(says(error_in(second.output()), "rank 1 cannot reach rank 0, which hosts the store:",
                   format("nothing answers at 127.0.0.1:{} after 1 s (Connection refused)", port)));
}

// Rank 1 leaves its training loop early and comes to the end of the program; rank 0 trains on.
TEST(FaultTest, RankThatLeavesItsLoopEarlyIsNamedWithItsCall) {
  for (const bool shared_memory : {false, true}) {
    Launched ranks(job(2, {"leaves_early"}),
                   with({format("FLEET_TIMEOUT_S={}", patient_s(3)),
                         format("FLEET_SHARED_MEMORY={}", shared_memory ? 1 : 0)}));
    EXPECT_EQ(ranks.wait(kLong), 1) << ranks.output();
    const auto first = error_in(ranks.log(0)), second = error_in(ranks.log(1));
    EXPECT_FALSE(first.empty() && second.empty()) << ranks.output();
    const std::string reduces = R"('all_reduce of gradient bucket 1 of 1 \(\d+ x Float, .* KB\)')";
    if (!first.empty()) {
      EXPECT_TRUE(matches(first, kWhileReducing +
                                     R"(rank 1 \([^,]+, pid \d+\) is at another call: )"
                                     R"(its call \d+ is 'barrier \(shutdown\)', and )"
                                     R"(here it is )" +
                                     reduces));
    }
    if (!second.empty()) {
      EXPECT_TRUE(
          matches(second, R"(rank 1: barrier \(shutdown\) failed after .*: rank 0 \(.*\) is )"
                          R"(at another call: its call \d+ is )" +
                              reduces + R"(, and here it is 'barrier \(shutdown\)')"));
    }
  }
}

TEST(FaultTest, RankOneThatNobodyStartedIsNamed) {
  const int port = comm::Store::host(0, 1s).port();
  Started first(by_hand({"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                         format("MASTER_PORT={}", port), "FLEET_TIMEOUT_S=1"},
                        {"calls"}));
  EXPECT_EQ(first.wait(), 1);
  EXPECT_TRUE(says(error_in(first.output()), "and of 2 ranks rank 1 did not arrive\n"));
}

TEST(FaultTest, RankThatCallsLessHasNotComeThisFar) {
  Launched ranks(job(2, {"one_less"}), with({format("FLEET_TIMEOUT_S={}", patient_s(3))}));
  EXPECT_EQ(ranks.wait(), 1) << ranks.output();
  EXPECT_TRUE(matches(
      error_in(ranks.log(0)),
      R"(rank 0: barrier \(barrier_worker\) failed after .*: rank 1 \(.*\) has not reached )"
      R"(this call: it is at its call 2 \('barrier \(barrier_worker\)'\), this is call 3)"))
      << ranks.log(0);
}

TEST(FaultTest, GroupThatOneRankMakesAloneNamesTheOthers) {
  const int limit_s = patient_s(3);
  Launched ranks(job(2, {"group_alone"}), with({format("FLEET_TIMEOUT_S={}", limit_s)}));
  EXPECT_EQ(ranks.wait(), 1) << ranks.output();
  EXPECT_TRUE(matches(
      error_in(ranks.log(0)),
      format(R"(\[comm\] rank 0 waited {} s )", limit_s) +
          R"(to make a group of 2 ranks, and rank 1 did not arrive\n)"
          R"(  rank 1 \(.*\) has not reached this call, or has left: it is not in this group; )"
          R"(its latest call is 'making a group')"))
      << ranks.log(0);
  EXPECT_EQ(ranks.log(0).find("[W"), std::string::npos) << ranks.log(0);
}

TEST(FaultTest, KilledHostOfTheStoreIsNamedByItsPeer) {
  const int port = comm::Store::host(0, 1s).port();
  auto own = [&](int rank) {
    return by_hand({"WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", format("MASTER_PORT={}", port),
                    format("RANK={}", rank)},
                   {"fault", "kill", "0", "5"});
  };
  Started first(own(0));
  Started second(own(1));
  EXPECT_EQ(first.wait(), 137) << first.output();
  EXPECT_EQ(second.wait(kLong), 1) << second.output();
  EXPECT_TRUE(
      matches(error_in(second.output()), kWhileReducing + R"(rank 0 \([^,]+, pid \d+\) has ended)"))
      << second.output();
}

class TwoHostsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = hosts_.refused(); !reason.empty()) GTEST_SKIP() << reason;
  }

  // In a process namespace of its own: a rank must not see a peer of the other host in /proc.
  Words on(int host, const Words& variables = {}) const {
    auto words = hosts_.on(host);
    for (const char* word : {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"})
      words.emplace_back(word);
    const auto env = with(variables);
    words.insert(words.end(), env.begin(), env.end());
    return words;
  }
  static Words as_node(int node, const Words& arguments) {
    return job(
        1, arguments,
        {"--nnodes=2", format("--node_rank={}", node), "--master=10.77.0.1:29512", "--grace_s=1"});
  }

  TwoHosts hosts_;
};

TEST_F(TwoHostsTest, TrainTogether) {
  Launched first(as_node(0, {"train", "20"}), on(0));
  Launched second(as_node(1, {"train", "20"}), on(1));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
  EXPECT_FALSE(after(first.log(0), "digest").empty()) << first.log(0);
  EXPECT_EQ(after(first.log(0), "digest"), after(second.log(1), "digest"));
  EXPECT_EQ(unexpected_lines(first.log(0)) + unexpected_lines(second.log(1)), "");
}

TEST_F(TwoHostsTest, LostLinkIsAnErrorOnBothSides) {
  const Words work = {"train", "100000000"};
  const auto limit = Words{format("FLEET_TIMEOUT_S={}", patient_s(3))};
  Launched first(as_node(0, work), on(0, limit));
  Launched second(as_node(1, work), on(1, limit));
  ASSERT_TRUE(eventually([&] { return losses(first.log(0)).contains(5); })) << first.output();
  ASSERT_TRUE(hosts_.unplug(1));
  const auto failed = [](const std::string& log) { return !error_in(log).empty(); };
  EXPECT_TRUE(eventually([&] { return failed(first.log(0)) && failed(second.log(1)); }, kLong))
      << "TCP itself would wait for many minutes";
  EXPECT_TRUE(says(error_in(first.log(0)), "rank 1 (", "has no heartbeat any more"));
  EXPECT_TRUE(says(error_in(second.log(1)), "rank 0 (", "the rendezvous store does not answer"));
  EXPECT_EQ(first.wait(20s), 1) << first.output();
  EXPECT_EQ(second.wait(20s), 1) << second.output();
}

}  // namespace
}  // namespace fleet::launch
