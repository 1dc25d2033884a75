// SPDX-License-Identifier: Apache-2.0
// N + M updates are N updates, a snapshot, a new start and M updates, bit for bit.
#include "fleet/snapshot/snapshot_tensors.h"

#include "tests/data/temporary_folder.h"
#include "tests/snapshot/snapshot_training.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

constexpr int64_t kBefore = 4, kAfter = 5;

DistributedStrategy merged(int k_steps) {
  return {.gradient_merge = true, .gradient_merge_configs = {.k_steps = k_steps}};
}

DistributedStrategy local(int k_steps) {
  return {.localsgd = true, .localsgd_configs = {.k_steps = k_steps}};
}

DistributedStrategy fp16() {
  DistributedStrategy strategy{.amp = true};
  strategy.amp_configs.dtype = "fp16";
  strategy.amp_configs.init_loss_scaling = 65536.0f * 256;  // too much at first
  strategy.amp_configs.decr_every_n_nan_or_inf = 1;
  strategy.amp_configs.decr_ratio = 0.01f;
  strategy.amp_configs.incr_every_n_steps = 3;
  return strategy;
}

DistributedStrategy pure_bf16() {
  DistributedStrategy strategy{.amp = true};
  strategy.amp_configs.use_pure_bf16 = true;
  return strategy;
}

std::vector<SnapshotTraining> trainings() {
  auto amp_merge = merged(2);
  amp_merge.amp = true;
  return {
      {.name = "SGD", .optimizer = "SGD"},
      {.name = "Momentum with a schedule", .has_schedule = true},
      {.name = "Adam", .optimizer = "Adam"},
      {.name = "lars", .strategy = {.lars = true}},
      {.name = "lamb", .strategy = {.lamb = true}, .optimizer = "Adam"},
      {.name = "bf16", .strategy = {.amp = true}},
      {.name = "fp16", .strategy = fp16(), .optimizer = "Adam"},
      {.name = "pure bf16", .strategy = pure_bf16()},
      {.name = "merge", .strategy = merged(3)},
      {.name = "merge by calls", .strategy = merged(2), .by_calls = true},
      {.name = "recompute", .strategy = {.recompute = true}},
      {.name = "amp and merge", .strategy = amp_merge, .optimizer = "Adam"},
  };
}

std::vector<SnapshotTraining> trainings_on_ranks() {
  auto slow = local(3), average = local(3), adaptive = local(4), amp = local(3), merge = local(3);
  slow.localsgd_configs.outer = "slow_momentum";
  average.localsgd_configs.optimizer_state = "average";
  adaptive.auto_ = true;
  amp.amp = fp16().amp;
  amp.amp_configs = fp16().amp_configs;
  merge.gradient_merge = true;
  merge.gradient_merge_configs.k_steps = 2;
  auto post = local(3);
  post.localsgd_configs.begin_step = 6;
  return {
      {.name = "sync_batch_norm", .strategy = {.sync_batch_norm = true}},
      {.name = "fp16_allreduce", .strategy = {.fp16_allreduce = true}},
      {.name = "localsgd", .strategy = local(3)},  // the snapshot is in the middle of a window
      {.name = "localsgd, at an average", .strategy = local(2)},
      {.name = "localsgd, before it begins", .strategy = post},
      {.name = "slow momentum", .strategy = slow},
      {.name = "averaged momentum", .strategy = average},
      {.name = "adaptive", .strategy = adaptive, .optimizer = "Adam"},
      {.name = "localsgd and fp16", .strategy = amp},
      {.name = "localsgd and merge", .strategy = merge},
  };
}

std::vector<Outcome> uninterrupted(const SnapshotTraining& setup, int ranks) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const Comm& comm) {
    TrainingRank rank(setup, comm);
    rank.train(0, kBefore);
    rank.train(kBefore, kBefore + kAfter);
    outcomes[static_cast<size_t>(comm->rank())] = rank.outcome();
    rank.optimizer().sync();
  });
  return outcomes;
}

void write_snapshot(const SnapshotTraining& setup, int ranks, const std::filesystem::path& dir) {
  run_ranks(ranks, [&](const Comm& comm) {
    TrainingRank rank(setup, comm);
    rank.train(0, kBefore);
    save_snapshot(dir, rank.optimizer());
    rank.optimizer().sync();
  });
}

std::vector<Outcome> resumed(const SnapshotTraining& setup, int ranks,
                             const std::filesystem::path& dir) {
  std::vector<Outcome> outcomes(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const Comm& comm) {
    TrainingRank rank(setup, comm);
    EXPECT_EQ(load_snapshot(dir, rank.optimizer()), kBefore);
    rank.train(kBefore, kBefore + kAfter);
    outcomes[static_cast<size_t>(comm->rank())] = rank.outcome();
    rank.optimizer().sync();
  });
  return outcomes;
}

void expect_resumes(const SnapshotTraining& setup, int ranks) {
  SCOPED_TRACE(setup.name + " on " + std::to_string(ranks));
  const TemporaryFolder folder;
  write_snapshot(setup, ranks, folder.path());
  expect_same(resumed(setup, ranks, folder.path()), uninterrupted(setup, ranks));
}

TEST(SnapshotResumeTest, EveryStrategyResumesBitForBitOnOneRank) {
  for (const auto& setup : trainings()) expect_resumes(setup, 1);
}

TEST(SnapshotResumeTest, EveryStrategyResumesBitForBitOnTwoRanks) {
  for (const auto& setup : trainings()) expect_resumes(setup, 2);
}

TEST(SnapshotResumeTest, LocalSgdResumesBitForBit) {
  for (const auto& setup : trainings_on_ranks()) expect_resumes(setup, 2);
}

TEST(SnapshotResumeTest, DropoutResumesWithItsNextMask) {
  const SnapshotTraining setup{.name = "dropout", .dropout = 0.3};
  const TemporaryFolder folder;
  const auto comm = std::make_shared<comm::Communicator>();
  TrainingRank whole(setup, comm);
  torch::manual_seed(9);
  whole.train(0, kBefore);
  save_snapshot(folder.path(), whole.optimizer());
  whole.train(kBefore, kBefore + kAfter);
  TrainingRank again(setup, comm);
  torch::manual_seed(1);
  load_snapshot(folder.path(), again.optimizer());
  again.train(kBefore, kBefore + kAfter);
  expect_same(again.outcome(), whole.outcome());
}

// A delayed average is brought in by the snapshot, so that saving is part of the training.
TEST(SnapshotResumeTest, DelayedAveragesArriveBeforeASnapshot) {
  auto strategy = local(2);
  strategy.localsgd_configs.delayed = true;
  const SnapshotTraining setup{.name = "delayed", .strategy = strategy};
  const TemporaryFolder folder;
  std::vector<Outcome> went_on(2);
  run_ranks(2, [&](const Comm& comm) {
    TrainingRank rank(setup, comm);
    rank.train(0, kBefore);
    EXPECT_TRUE(rank.optimizer().local_sgd()->is_sending());
    save_snapshot(folder.path(), rank.optimizer());
    rank.train(kBefore, kBefore + kAfter);
    rank.optimizer().sync();
    went_on[static_cast<size_t>(comm->rank())] = rank.outcome();
  });
  run_ranks(2, [&](const Comm& comm) {
    TrainingRank rank(setup, comm);
    load_snapshot(folder.path(), rank.optimizer());
    rank.train(kBefore, kBefore + kAfter);
    rank.optimizer().sync();
    expect_same(rank.outcome(), went_on[static_cast<size_t>(comm->rank())]);
  });
}

TEST(SnapshotResumeTest, TheFp16CaseSkipsAndMovesItsScale) {
  TrainingRank rank({.strategy = fp16(), .optimizer = "Adam"},
                    std::make_shared<comm::Communicator>());
  rank.train(0, kBefore);
  EXPECT_GT(rank.optimizer().skipped_updates(), 0);
  EXPECT_GT(rank.optimizer().updates(), 0);
}

TEST(SnapshotResumeTest, AnotherNumberOfRanksStartsFromRankZero) {
  const SnapshotTraining setup{.name = "Momentum"};
  const TemporaryFolder folder;
  Outcome then;
  run_ranks(2, [&](const Comm& comm) {
    TrainingRank rank(setup, comm);
    rank.train(0, kBefore);
    save_snapshot(folder.path(), rank.optimizer());
    if (comm->rank() == 0) then = rank.outcome();
  });
  then.losses.clear();
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](const Comm& comm) {
      TrainingRank rank(setup, comm);
      EXPECT_EQ(load_snapshot(folder.path(), rank.optimizer()), kBefore);
      auto now = rank.outcome();
      now.losses.clear();
      expect_same(now, then);
      EXPECT_EQ(rank.optimizer().updates(), kBefore);
      EXPECT_EQ(rank.optimizer().counters().loss_normalizer, 0);
      rank.train(kBefore, kBefore + 2);
      EXPECT_EQ(rank.optimizer().updates(), kBefore + 2);
    });
  }
}

TEST(SnapshotResumeTest, AnotherNumberOfRanksStartsFromTheLastAverage) {
  const SnapshotTraining setup{.name = "localsgd", .strategy = local(3)};
  const TemporaryFolder folder;
  Tensors average;
  run_ranks(2, [&](const Comm& comm) {
    TrainingRank rank(setup, comm);
    rank.train(0, 3);
    if (comm->rank() == 0) average = copies(rank.net()->parameters());
    rank.train(3, kBefore);  // one update on, which belongs to no average
    save_snapshot(folder.path(), rank.optimizer());
    rank.optimizer().sync();
  });
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](const Comm& comm) {
      TrainingRank rank(setup, comm);
      load_snapshot(folder.path(), rank.optimizer());
      expect_equal(copies(rank.net()->parameters()), average);
      auto* const sgd = rank.optimizer().local_sgd();
      EXPECT_EQ(sgd ? sgd->unsynced_steps() : 0, 0);
      rank.train(kBefore, kBefore + 3);
      rank.optimizer().sync();
      EXPECT_EQ(rank.optimizer().attempts(), kBefore + 3);
    });
  }
}

TEST(SnapshotResumeTest, NewRanksDrawNumbersOfTheirOwn) {
  const SnapshotTraining setup{.name = "Momentum"};
  const TemporaryFolder folder;
  const auto alone = std::make_shared<comm::Communicator>();
  TrainingRank writer(setup, alone);
  torch::manual_seed(77);
  save_snapshot(folder.path(), writer.optimizer());
  const auto next = torch::rand({4});
  const SafetensorsFile file(folder.path() / "step-00000000" / "rank-0.safetensors");
  const auto& arena = writer.optimizer().arena();
  set_generator_states(file, arena);
  EXPECT_TRUE(torch::equal(torch::rand({4}), next));
  std::vector<torch::Tensor> drawn = {next};
  for (const int64_t rank : {1, 2, 1}) {
    seed_generators(file, arena, rank, 5);
    drawn.push_back(torch::rand({4}));
  }
  EXPECT_FALSE(torch::equal(drawn[1], drawn[0]));
  EXPECT_FALSE(torch::equal(drawn[1], drawn[2]));
  EXPECT_TRUE(torch::equal(drawn[1], drawn[3]));
}

}  // namespace
}  // namespace fleet
