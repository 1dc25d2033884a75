// SPDX-License-Identifier: Apache-2.0
// Ranks that do well, and ranks that are started wrongly.

#include <unistd.h>

#include <gtest/gtest.h>

#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/ranks/ranks.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;

TEST(WorldTest, AnyNumberOfRanksTrainsAlike) {
  std::map<int, double> alone;
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    Launched training(job(ranks, {"train", "20"}));
    ASSERT_EQ(training.wait(), 0) << training.output();
    const auto digest = after(training.log(0), "digest");
    EXPECT_EQ(digest.size(), 16U) << training.log(0);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(after(training.log(rank), "digest"), digest) << "rank " << rank;
      EXPECT_EQ(unexpected_lines(training.log(rank)), "") << "rank " << rank;
    }
    const auto curve = losses(training.log(0));
    ASSERT_EQ(curve.size(), 20U) << training.log(0);
    if (ranks == 1) {
      alone = curve;
      EXPECT_LT(curve.at(19), 0.5 * curve.at(0)) << "it learns";
    }
    for (const auto& [step, loss] : curve) EXPECT_NEAR(loss, alone.at(step), 1e-5) << step;
  }
}

TEST(WorldTest, RanksKnowThemselvesAndEachOther) {
  Launched ranks(job(2, {"calls"}));
  ASSERT_EQ(ranks.wait(), 0) << ranks.output() << ranks.log(1);
  for (int rank = 0; rank < 2; ++rank) {
    const auto log = ranks.log(rank);
    const auto endpoints = log.substr(log.find("endpoints "));
    EXPECT_TRUE(says(log, format("rank {} of 2, local {} of 2, first {}, endpoints 127.0.0.1:",
                                 rank, rank, rank == 0)));
    EXPECT_EQ(endpoints, ranks.log(0).substr(ranks.log(0).find("endpoints ")));
    EXPECT_TRUE(says(log, "\nsums 2 21\n", "\njoined false\n"));
    EXPECT_EQ(unexpected_lines(log), "");
  }
}

// As with an optimizer of Fleet's.
TEST(WorldTest, ABudgetInPercentIsSharedAmongTheRanksOfAHost) {
  Launched alone(job(1, {"budget"})), two(job(2, {"budget"}));
  ASSERT_EQ(alone.wait(), 0) << alone.output();
  ASSERT_EQ(two.wait(), 0) << two.output() << two.log(1);
  EXPECT_TRUE(says(two.log(0), "[memory] the budget of this rank is ", "shared by 2 ranks"));
  const auto whole = std::stoll(after(alone.log(0), "granted"));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NEAR(static_cast<double>(std::stoll(after(two.log(rank), "granted"))),
                static_cast<double>(whole) / 2, 1 + 0.1 * static_cast<double>(whole));
  }
}

TEST(WorldTest, RanksEndTogetherWhenTheLastOfThemHasItsPlan) {
  Launched ranks(job(2, {"plan_only"}));
  ASSERT_EQ(ranks.wait(), 0) << ranks.output() << ranks.log(1);
  EXPECT_TRUE(says(ranks.log(0), "a micro-batch of 64 samples within 1.00 GiB"));
  EXPECT_TRUE(says(ranks.log(1), "a micro-batch of 96 samples within 1.00 GiB"));
  const auto steps = [&](int rank) {
    const auto log = ranks.log(rank);
    return log.substr(log.rfind("\nstep ") + 1, 8);
  };
  EXPECT_EQ(steps(0), steps(1));
  EXPECT_EQ(unexpected_lines(ranks.log(0)) + unexpected_lines(ranks.log(1)), "");
}

TEST(WorldTest, GpusThatTheProgramCannotUseAreRefusedByName) {
  Launched ranks({"--gpus=0,1", beside("test_rank_program"), "calls"});
  EXPECT_EQ(ranks.wait(), 2) << ranks.output();
  EXPECT_TRUE(says(ranks.output(), "was started for GPU ",
                   "this build of Fleet trains on the CPU only",
                   "fix: start it with fleetrun --nproc_per_node 2 instead of --gpus"));
}

TEST(WorldTest, ProgramsStartedByHandMeetAtRankZero) {
  const int port = comm::Store::host(0, 1s).port();
  const Words common = {"WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", format("MASTER_PORT={}", port)};
  auto own = [&](int rank) {
    auto variables = common;
    variables.push_back(format("RANK={}", rank));
    return by_hand(variables, {"calls"});
  };
  Started second(own(1));
  Started first(own(0));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
  for (const auto* rank : {&first, &second}) {
    EXPECT_TRUE(says(rank->output(), " of 2, local ", "\nsums 2 21\n"));
    EXPECT_EQ(unexpected_lines(rank->output()), "");
  }
}

TEST(WorldTest, PaddlesNamesAloneAreEnough) {
  const int port = comm::Store::host(0, 1s).port();
  const auto endpoints = format("127.0.0.1:{},127.0.0.1:{}", port, port + 1);
  auto own = [&](int rank) {
    return by_hand({format("PADDLE_TRAINER_ID={}", rank), "PADDLE_TRAINERS_NUM=2",
                    "PADDLE_TRAINER_ENDPOINTS=" + endpoints},
                   {"train", "5"});
  };
  Started first(own(0));
  Started second(own(1));
  EXPECT_EQ(first.wait(), 0) << first.output();
  EXPECT_EQ(second.wait(), 0) << second.output();
  EXPECT_FALSE(after(first.output(), "digest").empty()) << first.output();
  EXPECT_EQ(after(first.output(), "digest"), after(second.output(), "digest"));
  for (const auto* rank : {&first, &second}) EXPECT_EQ(unexpected_lines(rank->output()), "");
}

// As in the pods of a PyTorchJob: torchrun's names, and no LOCAL_RANK.
TEST(WorldTest, LocalRanksAreCountedByMachineWhereNobodyTells) {
  const int port = comm::Store::host(0, 1s).port();
  auto own = [&](int rank) {
    return by_hand({"WORLD_SIZE=2", "MASTER_ADDR=localhost", format("MASTER_PORT={}", port),
                    format("RANK={}", rank)},
                   {"calls"});
  };
  Started second(own(1));
  Started first(own(0));
  EXPECT_EQ(first.wait(60s), 0) << first.output();
  EXPECT_EQ(second.wait(60s), 0) << second.output();
  EXPECT_TRUE(says(first.output(), "rank 0 of 2, local 0 of 2,",
                   "[init] 2 ranks (RANK, WORLD_SIZE; local ranks counted by machine)"));
  EXPECT_TRUE(says(second.output(), "rank 1 of 2, local 1 of 2,"));
}

TEST(WorldTest, NoLineOfTheLogMakesRanksMeetBetweenTwoAverages) {
  const TemporaryFolder folder;
  Launched training(job(2, {"local_log", (folder.path() / "here").string()}));
  ASSERT_EQ(training.wait(60s), 0) << training.output() << training.log(1);
  const auto log = training.log(0);
  EXPECT_TRUE(says(log, "[Epoch 0, batch 0] loss: ", "[Epoch 0, batch 23] loss: ",
                   "[train] local SGD: the lines of batches are about rank 0 alone"));
  EXPECT_TRUE(says(log, format(", {} samples in ", 24 * 32))) << "each once, of both ranks";
}

TEST(WorldTest, RestartTrainsToTheEnd) {
  Launched training(job(2, {"fault", "exit_once", "1", "3"}, {"--max_restarts=1"}));
  ASSERT_EQ(training.wait(), 0) << training.output();
  EXPECT_TRUE(says(training.output(), "exited with code 3", "restart 1 of 1"));
  const auto digest = after(training.log(0), "digest");
  EXPECT_FALSE(digest.empty()) << training.log(0);
  EXPECT_EQ(after(training.log(1), "digest"), digest);
}

struct WrongStart {
  std::string name;
  Words variables;
  std::string mode;
  std::string text;
  int code = 2;
};

std::ostream& operator<<(std::ostream& out, const WrongStart& start) { return out << start.name; }

class WrongStartTest : public testing::TestWithParam<WrongStart> {};

TEST_P(WrongStartTest, IsRefusedByName) {
  const auto& start = GetParam();
  Started program(by_hand(start.variables, {start.mode}));
  EXPECT_EQ(program.wait(60s), start.code) << program.output();
  EXPECT_TRUE(says(error_in(program.output()), start.text));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, WrongStartTest,
    testing::Values(
        WrongStart{
            "InitTwice", {}, "init_twice", "[comm] fleet::init() was called twice\n  fix: ", 1},
        WrongStart{"IndexBeforeInit",
                   {},
                   "before_init",
                   "[comm] worker_index() before fleet::init()\n  fix: call fleet::init() first",
                   1},
        WrongStart{"TimeLimitThatIsNoNumber",
                   {"FLEET_TIMEOUT_S=abc"},
                   "calls",
                   "[comm] FLEET_TIMEOUT_S='abc' is not a number of seconds above 0"},
        WrongStart{"EndlessTimeLimit",
                   {"FLEET_TIMEOUT_S=inf"},
                   "calls",
                   "[comm] FLEET_TIMEOUT_S='inf' is not a number of seconds above 0"},
        WrongStart{"ContradictingRanks",
                   {"RANK=0", "WORLD_SIZE=2", "PADDLE_TRAINER_ID=1", "MASTER_ADDR=127.0.0.1",
                    "MASTER_PORT=29500"},
                   "calls",
                   "RANK=0 and PADDLE_TRAINER_ID=1 contradict each other"},
        WrongStart{"MasterThatDoesNotResolve",
                   {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=no-such-host.invalid",
                    "MASTER_PORT=29500", "FLEET_TIMEOUT_S=3600"},
                   "calls",
                   "the name 'no-such-host.invalid' does not resolve to an address (",
                   1},
        WrongStart{"MasterThatDoesNotResolveOnRankZero",
                   {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=no-such-host.invalid",
                    "MASTER_PORT=29500", "FLEET_TIMEOUT_S=3600"},
                   "calls",
                   "[comm] the name 'no-such-host.invalid' does not resolve to an address (",
                   1},
        WrongStart{"BackendThatIsNone",
                   {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500",
                    "FLEET_TIMEOUT_S=3600", "FLEET_BACKEND=mpi"},
                   "calls",
                   "[comm] there is no backend 'mpi'\n  fix: use gloo or nccl"},
        WrongStart{
            "AddressThatDoesNotResolve",
            {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500",
             "FLEET_TIMEOUT_S=3600", "FLEET_ADDRESS=no-such-host.invalid"},
            "calls",
            "[comm] FLEET_ADDRESS='no-such-host.invalid' is not an address of this machine ("},
        WrongStart{"AddressOfAnotherMachine",
                   {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500",
                    "FLEET_TIMEOUT_S=3600", "FLEET_ADDRESS=203.0.113.1"},
                   "calls",
                   "[comm] FLEET_ADDRESS='203.0.113.1' is not an address of this machine\n"},
        WrongStart{"SlurmTasksWithoutSrun",
                   {"SLURM_PROCID=0", "SLURM_NTASKS=4"},
                   "calls",
                   "the job has 4 tasks (SLURM_NTASKS), and this process was not started by srun"},
        WrongStart{"RankWithoutAPlaceToMeet",
                   {"RANK=0", "WORLD_SIZE=2"},
                   "calls",
                   "MASTER_ADDR is not set, so there is no address for the rendezvous"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fleet::launch
