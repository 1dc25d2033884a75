// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshots.h"

#include <fstream>
#include <random>
#include <thread>

#include "fleet/core/xx_hash64.h"
#include "fleet/data/data_loader.h"
#include "fleet/io/weights.h"
#include "fleet/snapshot/snapshot_folder.h"

#include "tests/data/temporary_folder.h"
#include "tests/snapshot/numbers.h"
#include "tests/snapshot/snapshot_training.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT
namespace fs = std::filesystem;
using launch::contents;
using Steps = std::vector<int64_t>;

/// A whole program; `stop_after` updates it ends as if it had been killed.
Outcome run_program(const Comm& comm, const SnapshotOptions& options,
                    const DistributedStrategy& strategy, int64_t stop_after = 1000) {
  TrainingRank rank({.strategy = strategy}, comm);
  auto& optimizer = rank.optimizer();
  auto data = numbers_of(comm, 4);
  Snapshots snapshots(optimizer, options, data);
  for (int64_t epoch = data.state().epoch; epoch < 3; ++epoch) {
    for (const auto& batch : data.epoch(epoch)) {
      optimizer.minimize(batch,
                         [&](const Batch& micro_batch) { return rank.net()->loss(micro_batch); });
      snapshots.after_update();
      if (optimizer.attempts() == stop_after) {
        auto outcome = rank.outcome();
        optimizer.sync();
        return outcome;
      }
    }
    optimizer.end_epoch();
    snapshots.after_epoch();
  }
  snapshots.finish();
  return rank.outcome();
}

TEST(SnapshotsTest, AProgramResumesWhereItWas) {
  const DistributedStrategy local{.localsgd = true, .localsgd_configs = {.k_steps = 3}};
  for (const int ranks : {1, 2}) {
    for (const auto& strategy : {DistributedStrategy{}, local}) {
      for (const int64_t save_every : {0, 2, 5}) {  // 10 or 5 updates make an epoch
        SCOPED_TRACE(std::to_string(ranks) + " ranks, every " + std::to_string(save_every));
        const TemporaryFolder folder;
        run_ranks(ranks, [&](const Comm& comm) {
          const SnapshotOptions options{.snapshot_dir = folder.path(), .save_every = save_every};
          const auto whole = run_program(comm, {}, strategy);
          run_program(comm, options, strategy, 7);
          comm->barrier("a check");
          run_program(comm, options, strategy, 12);
          comm->barrier("a check");
          expect_same(run_program(comm, options, strategy), whole);
        });
      }
    }
  }
}

TEST(SnapshotsTest, SavesWhenItIsDueAndKeepsTheNewest) {
  const TemporaryFolder folder;
  const SnapshotOptions options{.snapshot_dir = folder.path(), .save_every = 4, .keep = 3};
  run_program(single_rank(), options, {}, 19);
  EXPECT_EQ(snapshots_in(folder.path()), (Steps{16, 12, 8}));
  run_program(single_rank(), options, {}, 21);  // the 20th is the last of its epoch: see to its end
  EXPECT_EQ(snapshots_in(folder.path()), (Steps{20, 16, 12}));
  EXPECT_EQ(
      run_program(single_rank(), {.snapshot_dir = folder.path(), .keep = 0}, {}).losses.size(), 8);
  EXPECT_EQ(snapshots_in(folder.path()), (Steps{30, 20, 16, 12}));
}

TEST(SnapshotsTest, EndOfTheTrainingIsInASnapshot) {
  for (const int64_t save_every : {0, 4, 1000}) {
    const TemporaryFolder folder;
    run_program(single_rank(), {.snapshot_dir = folder.path(), .save_every = save_every}, {});
    EXPECT_EQ(snapshots_in(folder.path()).front(), 30) << save_every;
  }
}

// As --max_updates does it: the loop leaves off within an epoch.
TEST(SnapshotsTest, EndWithinAnEpochIsInASnapshotToo) {
  const DistributedStrategy local{.localsgd = true, .localsgd_configs = {.k_steps = 3}};
  for (const auto& strategy : {DistributedStrategy{}, local}) {
    const TemporaryFolder folder;
    run_ranks(2, [&](const Comm& comm) {
      TrainingRank rank({.strategy = strategy}, comm);
      auto& optimizer = rank.optimizer();
      auto data = numbers_of(comm, 4);
      Snapshots snapshots(optimizer, {.snapshot_dir = folder.path(), .save_every = 2}, data);
      for (const auto& batch : data.epoch(0)) {
        optimizer.minimize(batch,
                           [&](const Batch& micro_batch) { return rank.net()->loss(micro_batch); });
        const bool is_over = optimizer.attempts() == 4;
        snapshots.after_update(is_over ? Snapshots::Next::kEnd : Snapshots::Next::kUpdate);
        if (is_over) break;
      }
      optimizer.end_epoch();  // with local SGD ranks become one model
      snapshots.after_epoch();
      snapshots.finish();
      TrainingRank again({.strategy = strategy}, comm);
      auto resumed = numbers_of(comm, 4);
      EXPECT_EQ(load_snapshot(folder.path(), again.optimizer(), resumed), 4);
      EXPECT_EQ(resumed.state().next_update, 4);
      expect_equal(copies(again.net()->parameters()), copies(rank.net()->parameters()));
      comm->barrier("a check");
    });
    EXPECT_EQ(snapshots_in(folder.path()), (Steps{4, 2}));
  }
}

TEST(SnapshotsTest, OneThatIsSavedInBetweenDoesNotShiftThoseAfter) {
  const TemporaryFolder folder;
  const SnapshotOptions options{.snapshot_dir = folder.path(), .save_every = 4, .keep = 0};
  TrainingRank rank({}, single_rank());
  Snapshots snapshots(rank.optimizer(), options);
  for (int64_t step = 0; step < 12; ++step) {
    rank.train(step, step + 1);
    snapshots.after_update();
    if (step + 1 == 6) snapshots.save();  // as on SIGTERM
  }
  snapshots.finish();
  EXPECT_EQ(snapshots_in(folder.path()), (Steps{12, 8, 6, 4}));
}

TEST(SnapshotsTest, WindowThatIsOpenAtTheEndIsSaid) {
  const TemporaryFolder folder;
  TrainingRank rank(
      {.strategy = {.gradient_merge = true, .gradient_merge_configs = {.k_steps = 2}}},
      single_rank());
  Snapshots snapshots(rank.optimizer(), {.snapshot_dir = folder.path(), .save_every = 100});
  for (int call = 0; call < 3; ++call) {
    rank.optimizer().minimize([&] { return rank.net()->loss(small_batch(4, call)); });
    snapshots.after_update();
  }
  ::testing::internal::CaptureStderr();
  snapshots.finish();
  EXPECT_TRUE(says(::testing::internal::GetCapturedStderr(),
                   "the end of the training was not saved: an accumulation window is open"));
  EXPECT_EQ(snapshots_in(folder.path()), Steps{});
}

TEST(SnapshotsTest, SayWhatWasWritten) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  ::testing::internal::CaptureStdout();
  save_snapshot(folder.path(), rank.optimizer());
  const auto said = ::testing::internal::GetCapturedStdout();
  EXPECT_TRUE(says(said, "[snapshot] update 0 saved: ", " KiB in ", " s, ",
                   (folder.path() / "step-00000000").string() + "\n"));
}

TEST(SnapshotsTest, FolderIsLockedBeforeTheFirstUpdate) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  const Snapshots snapshots(rank.optimizer(), {.snapshot_dir = folder.path()});
  std::thread([&] {
    TrainingRank other({}, single_rank());
    EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                       Snapshots second(other.optimizer(), {.snapshot_dir = folder.path()});
                     }),
                     "is in use by another run: this process itself (pid "));
    EXPECT_TRUE(
        says(error_message_of<UsageError>([&] { save_snapshot(folder.path(), other.optimizer()); }),
             "is in use by another run"));
  }).join();
}

TEST(SnapshotsTest, RefusalOfRankZeroIsThatOfAll) {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path());
  run_ranks(2, [&](const Comm& comm) {
    TrainingRank rank({}, comm);
    EXPECT_TRUE(says(error_message_of<UsageError>([&] {
                       Snapshots snapshots(rank.optimizer(), {.snapshot_dir = folder.path()});
                     }),
                     comm->rank() == 0 ? "[snapshot] /" : "[snapshot] rank 0: /",
                     "is in use by another run", "fix: give each run"));
  });
}

TEST(SnapshotsTest, FolderThatCannotBeWrittenIsSeenAtTheStart) {
  const TemporaryFolder folder;
  folder.write("file", "x");
  TrainingRank rank({}, single_rank());
  for (const auto& dir : {folder.path() / "file", folder.path() / "file" / "below"}) {
    EXPECT_TRUE(says(error_message_of<UsageError>(
                         [&] { Snapshots snapshots(rank.optimizer(), {.snapshot_dir = dir}); }),
                     "--snapshot_dir: cannot write " + dir.string(), "Not a directory"));
  }
}

TEST(SnapshotsTest, SnapshotThatWasBetweenTwoNamesIsLoaded) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  save_snapshot(folder.path(), rank.optimizer());
  fs::rename(snapshot_folder(folder.path(), 0), folder.path() / ".replaced-step-00000000");
  EXPECT_EQ(load_snapshot(folder.path(), rank.optimizer()), 0);
}

TEST(SnapshotsTest, WithoutAFolderNothingHappens) {
  TrainingRank rank({}, single_rank());
  Snapshots snapshots(rank.optimizer(), {.save_every = 1});
  rank.train(0, 1);
  snapshots.after_update();
  snapshots.after_epoch();
  snapshots.save();
  snapshots.finish();
  EXPECT_EQ(snapshots.resumed(), std::nullopt);
  EXPECT_EQ(snapshots.copy_seconds(), 0);
}

TEST(SnapshotsTest, AWindowOfCallsIsNotCutInTwo) {
  const TemporaryFolder folder;
  TrainingRank rank(
      {.strategy = {.gradient_merge = true, .gradient_merge_configs = {.k_steps = 3}}},
      single_rank());
  auto& optimizer = rank.optimizer();
  Snapshots snapshots(optimizer, {.snapshot_dir = folder.path(), .save_every = 1, .keep = 0});
  for (int call = 0; call < 7; ++call) {
    optimizer.minimize([&] { return rank.net()->loss(small_batch(4, call)); });
    snapshots.after_update();
  }
  snapshots.finish();
  EXPECT_EQ(snapshots_in(folder.path()), (Steps{2, 1}));
  EXPECT_TRUE(says(error_message_of([&] { snapshots.save(); }), "1 of 3 calls of minimize wait",
                   "report.updated"));
}

TEST(SnapshotsTest, TrainingContinuesWhileItIsWritten) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  rank.train(0, 2);
  const auto then = rank.outcome();
  {
    Snapshots snapshots(rank.optimizer(), {.snapshot_dir = folder.path(), .keep = 0});
    snapshots.save();
    rank.train(2, 6);  // must not show in the snapshot
    snapshots.save();
    rank.train(6, 8);
  }
  EXPECT_EQ(snapshots_in(folder.path()), (Steps{6, 2}));
  fs::remove_all(snapshot_folder(folder.path(), 6));
  TrainingRank again({}, single_rank());
  load_snapshot(folder.path(), again.optimizer());
  expect_equal(again.outcome().parameters, then.parameters);
}

TEST(SnapshotsTest, AnErrorOfTheWriterComesOutLater) {
  const TemporaryFolder folder;
  const auto dir = folder.path() / "here";
  TrainingRank rank({}, single_rank());
  Snapshots snapshots(rank.optimizer(), {.snapshot_dir = dir});
  fs::remove_all(dir);
  folder.write("here", "a file where the folder should be");
  snapshots.save();
  EXPECT_TRUE(says(error_message_of([&] { snapshots.save(); }), "cannot", dir.string()));
  snapshots.save();
  EXPECT_TRUE(says(error_message_of([&] { snapshots.finish(); }), "cannot", dir.string()));
  fs::remove(dir);
  snapshots.save();
  snapshots.finish();
  EXPECT_EQ(snapshots_in(dir), Steps{0});
}

TEST(SnapshotsTest, RanksThatSeeOtherFoldersAreToldAtTheStart) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const Comm& comm) {
    TrainingRank rank({}, comm);
    // Rank 1 looks elsewhere, as on a machine without the shared folder.
    const auto dir = comm->rank() == 0 ? folder.path() : folder.path() / "elsewhere";
    EXPECT_TRUE(says(error_message_of<UsageError>(
                         [&] { Snapshots snapshots(rank.optimizer(), {.snapshot_dir = dir}); }),
                     comm->rank() == 0 ? "[snapshot] rank 1: /" : "[snapshot] /", "elsewhere on ",
                     "its ranks do not see the same one", "--snapshot_dir"));
  });
}

TEST(SnapshotsTest, RankThatCannotWriteTellsTheOthers) {
  const TemporaryFolder folder, other;
  fs::create_symlink(folder.path(), other.path() / "link");
  run_ranks(2, [&](const Comm& comm) {
    TrainingRank rank({}, comm);
    const auto dir = comm->rank() == 0 ? folder.path() : other.path() / "link";
    Snapshots snapshots(rank.optimizer(), {.snapshot_dir = dir});
    comm->barrier("both are there");
    if (comm->rank() == 1) fs::remove(dir);  // its server is gone
    snapshots.save();
    EXPECT_TRUE(says(error_message_of([&] { snapshots.finish(); }),
                     comm->rank() == 0 ? "[snapshot] rank 1: cannot write " : "cannot write ",
                     "link/.step-00000000."));
  });
  EXPECT_EQ(snapshots_in(folder.path()), Steps{});
}

TEST(SnapshotsTest, DataResumeAfterAsManySamplesOnOtherRanks) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const Comm& comm) {
    TrainingRank rank({}, comm);
    auto data = numbers_of(comm, 4);
    auto epoch = data.epoch(1);
    auto next = epoch.begin();
    ++next;
    ++next;  // three batches of 8
    save_snapshot(folder.path(), rank.optimizer(), data);
  });
  TrainingRank rank({}, single_rank());
  auto same = numbers_of(single_rank(), 8);
  load_snapshot(folder.path(), rank.optimizer(), same);
  EXPECT_EQ(same.state().epoch, 1);
  EXPECT_EQ(same.state().next_update, 3);
  auto other = numbers_of(single_rank(), 10);  // 24 samples are two batches and a bit
  ::testing::internal::CaptureStderr();
  load_snapshot(folder.path(), rank.optimizer(), other);
  EXPECT_TRUE(says(::testing::internal::GetCapturedStderr(), "the global batch was 8 and is now 10",
                   "use --batch_size 8: 8 x 1 rank keep"));
  EXPECT_EQ(other.state().epoch, 1);
  EXPECT_EQ(other.state().next_update, 2);
  run_ranks(2, [&](const Comm& comm) {  // no excuse: as many ranks
    TrainingRank again({}, comm);
    auto data = numbers_of(comm, 5);
    EXPECT_TRUE(
        says(error_message_of([&] { load_snapshot(folder.path(), again.optimizer(), data); }),
             "global batch (batch_size x ranks) was 8 and is now 10",
             "fix: use --batch_size 4: 4 x 2 ranks keep the global batch of 8"));
  });
}

TEST(SnapshotsTest, AskForAPositionThatIsThere) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  auto data = numbers_of(single_rank(), 4);
  save_snapshot(folder.path(), rank.optimizer());
  EXPECT_TRUE(says(error_message_of([&] { load_snapshot(folder.path(), rank.optimizer(), data); }),
                   "no position in the data", "resume without data"));
}

TEST(SnapshotsTest, RefuseAnotherModelAndLeaveItAlone) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  save_snapshot(folder.path(), rank.optimizer());
  BlockNet other(BlockNetOptions{.blocks = 3, .width = 14});
  const auto before = copies(other->parameters());
  DistributedOptimizer optimizer(
      std::make_unique<optim::Momentum>(other, optim::MomentumOptions{.lr = 0.1}), {},
      single_rank());
  EXPECT_TRUE(says(error_message_of([&] { load_snapshot(folder.path(), optimizer); }),
                   "model.safetensors is of another model", "mismatched: first.weight",
                   "missing: linears.2.weight", "fleet::load_weights"));
  expect_equal(copies(other->parameters()), before);
  TrainingRank adam({.optimizer = "Adam"}, single_rank());
  EXPECT_TRUE(says(error_message_of([&] { load_snapshot(folder.path(), adam.optimizer()); }),
                   "optimizer.safetensors", "unexpected: velocity/first.weight"));
}

TEST(SnapshotsTest, SayWhichStrategyIsAnother) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  save_snapshot(folder.path(), rank.optimizer());
  TrainingRank amp({.strategy = {.amp = true}}, single_rank());
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  load_snapshot(folder.path(), amp.optimizer());
  const auto said =
      ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(says(said, "the strategy is another: amp was false and is now true"));
}

TEST(SnapshotsTest, HoldAFileThatLoadWeightsTakes) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  rank.train(0, 3);
  save_snapshot(folder.path(), rank.optimizer());
  BlockNet net(BlockNetOptions{.blocks = 2});
  load_weights(net, snapshot_folder(folder.path(), 3) / "model.safetensors");
  expect_equal(copies(net->parameters()), copies(rank.net()->parameters()));
  expect_equal(copies(net->buffers()), copies(rank.net()->buffers()));
}

}  // namespace
}  // namespace fleet
