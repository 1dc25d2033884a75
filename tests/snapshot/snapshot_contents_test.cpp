// SPDX-License-Identifier: Apache-2.0
// One snapshot over several optimizers, models and the program's own values.
#include "fleet/snapshot/snapshot_contents.h"

#include <cmath>

#include "fleet/io/weights.h"
#include "fleet/snapshot/snapshot_folder.h"

#include "tests/data/temporary_folder.h"
#include "tests/snapshot/snapshot_training.h"
#include "tests/snapshot/two_nets.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT
namespace fs = std::filesystem;
using Steps = std::vector<int64_t>;

struct Resumed {
  int ranks = 1;
  int64_t save_every = 9;  // 15 updates of both together make an epoch on two ranks, 30 on one
  DistributedStrategy strategy = {};
};

std::vector<Resumed> resumed_trainings() {
  const DistributedStrategy local{.localsgd = true, .localsgd_configs = {.k_steps = 3}};
  const DistributedStrategy merged{
      .amp = true, .gradient_merge = true, .gradient_merge_configs = {.k_steps = 2}};
  return {{.ranks = 1},
          {.ranks = 1, .strategy = merged},
          {.ranks = 2},
          {.ranks = 2, .save_every = 0},
          {.ranks = 2, .strategy = local},
          {.ranks = 2, .strategy = merged}};
}

TEST(SnapshotContentsTest, SeveralOptimizersModelsAndValuesResumeBitForBit) {
  for (const auto& [ranks, save_every, strategy] : resumed_trainings()) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, every " + std::to_string(save_every));
    const TemporaryFolder folder;
    run_ranks(ranks, [&](const Comm& comm) {
      const SnapshotOptions options{.snapshot_dir = folder.path(), .save_every = save_every};
      TwoNets whole(strategy, comm);
      whole.train(nullptr, 2);
      for (const int64_t stop_after : {int64_t{7}, int64_t{1000}}) {
        TwoNets nets(strategy, comm);
        Snapshots snapshots(options, nets.contents());
        EXPECT_EQ(snapshots.resumed().has_value(), stop_after == 1000);
        nets.train(&snapshots, 2, stop_after);
        snapshots.finish();
        if (stop_after == 1000) expect_same(nets.outcome(), whole.outcome());
        comm->barrier("the next attempt");
        nets.sync();
      }
    });
  }
}

TEST(SnapshotContentsTest, ARequestToStopSavesAllOptimizersAtTheSamePoint) {
  const TemporaryFolder folder;
  const SnapshotOptions options{.snapshot_dir = folder.path(), .save_every = 1000};
  std::vector<Outcome> expected(2), resumed(2);
  run_ranks(2, [&](const Comm& comm) {
    TwoNets whole({}, comm);
    whole.train(nullptr, 2);
    expected[static_cast<size_t>(comm->rank())] = whole.outcome();
  });
  run_ranks(2, [&](const Comm& comm) {
    TwoNets nets({}, comm);
    Snapshots snapshots(options, nets.contents());
    const auto ask_one = [&](int64_t updates) {
      if (updates == 3 && comm->rank() == 1) request_stop();
    };
    EXPECT_TRUE(says(error_message_of<Stopped>([&] { nets.train(&snapshots, 2, 1000, ask_one); }),
                     "all ranks stop after generator's update 4, discriminator's update 8: saved "
                     "in " +
                         folder.path().string() + "/step-00000012"));
  });
  EXPECT_EQ(snapshots_in(folder.path()), Steps{12});
  run_ranks(2, [&](const Comm& comm) {
    TwoNets nets({}, comm);
    Snapshots snapshots(options, nets.contents());
    EXPECT_EQ(snapshots.resumed(), 12);
    EXPECT_EQ(nets.generator().updates(), 4);
    EXPECT_EQ(nets.discriminator().updates(), 8);
    nets.train(&snapshots, 2);
    snapshots.finish();
    resumed[static_cast<size_t>(comm->rank())] = nets.outcome();
  });
  expect_same(resumed, expected);
}

// A process that is killed between two saves would leave two moments; a signal, only one of them.
TEST(SnapshotContentsTest, ASecondSnapshotsObjectIsRefusedAndTheFormOverSeveralNamed) {
  const TemporaryFolder folder;
  TwoNets nets({}, single_rank());
  for (const char* second : {"", "one", "another"}) {
    Snapshots first(nets.generator(), {.snapshot_dir = folder.path() / "one"});
    EXPECT_TRUE(
        says(error_message_of([&] { Snapshots(nets.discriminator(), {.snapshot_dir = second}); }),
             "there is a fleet::Snapshots over " + folder.path().string() + "/one already",
             "fleet::Snapshots(options, {.optimizers = {{\"generator\", &g}, "));
  }
  Snapshots after(nets.discriminator(), {.snapshot_dir = folder.path() / "one"});
}

TEST(SnapshotContentsTest, OtherNamesAreRefusedWithTheNearest) {
  const TemporaryFolder folder;
  TwoNets nets({}, single_rank());
  nets.train(nullptr, 1, 2);
  save_snapshot(folder.path(), nets.contents());
  TwoNets other({}, single_rank());
  const auto before = other.outcome();
  auto contents = other.contents();
  double best = 1;
  contents.optimizers[0].name = "genrator";
  contents.models.clear();
  contents.values[0] = {"bestloss", &best};
  EXPECT_TRUE(says(error_message_of([&] { load_snapshot(folder.path(), contents); }),
                   "step-00000006 holds other names than are given here",
                   "missing: optimizer 'genrator' (did you mean 'generator'?)",
                   "unexpected: optimizer 'generator' (did you mean 'genrator'?)",
                   "unexpected: model 'average'",
                   "missing: value 'bestloss' (did you mean "
                   "'best_loss'?)"));
  EXPECT_TRUE(says(error_message_of([&] { load_snapshot(folder.path(), other.generator()); }),
                   "missing: an optimizer without a name", "unexpected: optimizer 'generator'"));
  expect_same(other.outcome(), before);
  EXPECT_EQ(best, 1);
  EXPECT_EQ(load_snapshot(folder.path(), other.contents()), 6);
}

TEST(SnapshotContentsTest, ContentsThatCannotBeNamedAreRefusedAllAtOnce) {
  TwoNets nets({}, single_rank());
  double number = 0;
  const SnapshotContents contents{
      .optimizers = {{"a", &nets.generator()}, {"a", &nets.discriminator()}, {"", nullptr}},
      .models = {{"b/c", nets.average_net()}},
      .values = {{"x", &number}, {"x", &number}, {"y", static_cast<int*>(nullptr)}}};
  EXPECT_TRUE(says(error_message_of([&] { Snapshots({}, contents); }),
                   "the name 'a' is taken twice",
                   "the name '' of an optimizer is not made of letters", "optimizer '' is null",
                   "the name 'b/c' of a model is not made of letters",
                   "the value 'x' is given twice", "value 'y' is null"));
  EXPECT_TRUE(
      says(error_message_of([] { Snapshots({}, SnapshotContents{}); }), "there is no optimizer"));
}

TEST(SnapshotContentsTest, HaveTheFilesOfThePageAndWeightsForInference) {
  const TemporaryFolder folder;
  run_ranks(2, [&](const Comm& comm) {
    TwoNets nets({}, comm);
    nets.train(nullptr, 1, 2);
    save_snapshot(folder.path(), nets.contents());
    if (comm->rank() > 0) return;
    const auto snapshot = snapshot_folder(folder.path(), 6);
    TwoNets fresh({}, single_rank());
    load_weights(fresh.generator_net(), snapshot / "generator.model.safetensors");
    load_weights(fresh.average_net(), snapshot / "average.model.safetensors");
    expect_equal(copies(fresh.generator_net()->parameters()),
                 copies(nets.generator_net()->parameters()));
    expect_equal(copies(fresh.average_net()->parameters()),
                 copies(nets.average_net()->parameters()));
  });
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(snapshot_folder(folder.path(), 6))) {
    names.insert(item.path().filename());
  }
  std::set<std::string> expected = {"training.json",
                                    "checksums.xxh64",
                                    "generator.training.json",
                                    "generator.model.safetensors",
                                    "generator.optimizer.safetensors",
                                    "discriminator.training.json",
                                    "discriminator.model.safetensors",
                                    "discriminator.optimizer.safetensors",
                                    "average.model.safetensors"};
  for (const std::string rank : {"rank-0", "rank-1"}) {
    for (const std::string name : {"generator.", "discriminator."}) {
      expected.insert(name + rank + ".json");
      expected.insert(name + rank + ".safetensors");
    }
    expected.insert("average." + rank + ".safetensors");
    expected.insert(rank + ".safetensors");
    expected.insert(rank + ".data.json");
    expected.insert(rank + ".values.json");
  }
  EXPECT_EQ(names, expected);
}

TEST(SnapshotContentsTest, OneOptimizerWithoutValuesIsWrittenAsBefore) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  save_snapshot(folder.path(), rank.optimizer());
  const auto text = launch::contents(snapshot_folder(folder.path(), 0) / "training.json");
  EXPECT_TRUE(says(text, "\"format\": 1", "\"optimizer\": \"Momentum\""));
  EXPECT_EQ(text.find("optimizers"), text.npos) << text;
}

TEST(SnapshotContentsTest, ADamagedFileOfAnyOptimizerIsNoticed) {
  const TemporaryFolder whole;
  TwoNets nets({}, single_rank());
  for (const int64_t updates : {1, 2}) {
    nets.train(nullptr, 1, updates);
    save_snapshot(whole.path(), nets.contents());
  }
  for (const auto& item : fs::directory_iterator(snapshot_folder(whole.path(), 6))) {
    const TemporaryFolder folder;
    fs::copy(whole.path(), folder.path(), fs::copy_options::recursive);
    const auto name = item.path().filename();
    const auto file = snapshot_folder(folder.path(), 6) / name;
    fs::resize_file(file, fs::file_size(file) - 1);
    ::testing::internal::CaptureStderr();
    TwoNets other({}, single_rank());
    EXPECT_EQ(load_snapshot(folder.path(), other.contents()), 3) << name;
    EXPECT_TRUE(
        says(::testing::internal::GetCapturedStderr(), "step-00000006 is not used", name.string()));
  }
}

TEST(SnapshotContentsTest, RanksKeepValuesOfTheirOwnAndAnotherNumberOfThemGetsRankZeros) {
  const TemporaryFolder folder;
  const auto with_values = [&](const Comm& comm, auto&& work) {
    TrainingRank rank({}, comm);
    int64_t seen = 100 + comm->rank();
    auto seen_labels = torch::full({2}, comm->rank(), torch::kLong);
    work(SnapshotContents::of(rank.optimizer(), {}, {{"seen", &seen}, {"labels", &seen_labels}}));
    return std::pair(seen, seen_labels);
  };
  run_ranks(2, [&](const Comm& comm) {
    with_values(comm, [&](const auto& contents) { save_snapshot(folder.path(), contents); });
    const auto [seen, labels] = with_values(
        comm, [&](const SnapshotContents& contents) { load_snapshot(folder.path(), contents); });
    EXPECT_EQ(seen, 100 + comm->rank());
    EXPECT_EQ(labels[1].item<int64_t>(), comm->rank());
  });
  run_ranks(3, [&](const Comm& comm) {
    const auto [seen, labels] = with_values(
        comm, [&](const SnapshotContents& contents) { load_snapshot(folder.path(), contents); });
    EXPECT_EQ(seen, 100);
    EXPECT_EQ(labels[1].item<int64_t>(), 0);
  });
}

// ---- own values ---------------------------------------------------------------------------------

struct Kept {
  bool is_warm = false;
  int count = 0;
  int64_t seen = 0;
  uint64_t seed = 0;
  float rate = 0;
  double best = 0, worst = 0, none = 0;
  std::string phase;
  std::vector<int64_t> order;
  std::vector<double> losses;
  torch::Tensor average, shadow, undefined;

  std::vector<SnapshotValue> values() {
    return {{"is_warm", &is_warm}, {"count", &count},        {"seen", &seen},
            {"seed", &seed},       {"rate", &rate},          {"best", &best},
            {"worst", &worst},     {"none", &none},          {"phase", &phase},
            {"order", &order},     {"losses", &losses},      {"average", &average},
            {"shadow", &shadow},   {"undefined", &undefined}};
  }
};

TEST(SnapshotValueTest, EveryTypeComesBackToTheLastBit) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  Kept kept{.is_warm = true,
            .count = -7,
            .seen = std::numeric_limits<int64_t>::min(),
            .seed = std::numeric_limits<uint64_t>::max(),
            .rate = 0.1F,
            .best = std::numeric_limits<double>::infinity(),
            .worst = -std::numeric_limits<double>::infinity(),
            .none = std::nan(""),
            .phase = "warm \"up\"\n\u00fc",
            .order = {3, 1, 2},
            .losses = {1.0 / 3, std::numeric_limits<double>::infinity(), 5e-324},
            .average = torch::randn({2, 3}),
            .shadow = torch::randn({4}, torch::kDouble)};
  save_snapshot(folder.path(), SnapshotContents::of(rank.optimizer(), {}, kept.values()));
  Kept again{.shadow = torch::zeros({4}, torch::kDouble), .undefined = torch::ones({1})};
  const auto view = again.shadow.narrow(0, 1, 2);  // still a view afterwards
  load_snapshot(folder.path(), SnapshotContents::of(rank.optimizer(), {}, again.values()));
  EXPECT_EQ(again.is_warm, kept.is_warm);
  EXPECT_EQ(again.count, kept.count);
  EXPECT_EQ(again.seen, kept.seen);
  EXPECT_EQ(again.seed, kept.seed);
  EXPECT_EQ(again.rate, kept.rate);
  EXPECT_EQ(again.best, kept.best);
  EXPECT_EQ(again.worst, kept.worst);
  EXPECT_TRUE(std::isnan(again.none));
  EXPECT_EQ(again.phase, kept.phase);
  EXPECT_EQ(again.order, kept.order);
  EXPECT_EQ(again.losses, kept.losses);
  EXPECT_TRUE(torch::equal(again.average, kept.average));
  EXPECT_TRUE(torch::equal(again.shadow, kept.shadow));
  EXPECT_TRUE(torch::equal(view, kept.shadow.narrow(0, 1, 2)));
  EXPECT_FALSE(again.undefined.defined());
}

TEST(SnapshotValueTest, ASnapshotHoldsTheValuesOfItsMoment) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  int64_t seen = 1;
  auto sum = torch::ones({3});
  {
    Snapshots snapshots(rank.optimizer(), {.snapshot_dir = folder.path()}, {},
                        {{"seen", &seen}, {"sum", &sum}});
    snapshots.save();
    seen = 2;
    sum.add_(1);  // must not show in the snapshot
  }
  seen = 3;
  Snapshots snapshots(rank.optimizer(), {.snapshot_dir = folder.path()}, {},
                      {{"seen", &seen}, {"sum", &sum}});
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(torch::equal(sum, torch::ones({3})));
}

TEST(SnapshotValueTest, CopiesAreBroughtUpToDateBeforeEachSnapshot) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  int64_t original = 1, copy = 0;
  auto contents = SnapshotContents::of(rank.optimizer(), {}, {{"copy", &copy}});
  contents.before_save = [&] { copy = original; };
  {
    Snapshots snapshots({.snapshot_dir = folder.path()}, contents);
    original = 5;
    snapshots.save();
  }
  copy = 0;
  const Snapshots snapshots({.snapshot_dir = folder.path()}, contents);
  EXPECT_EQ(copy, 5);
}

TEST(SnapshotValueTest, AnotherTypeIsNamedAndNothingIsSet) {
  const TemporaryFolder folder;
  TrainingRank rank({}, single_rank());
  double best = 0.5;
  int64_t patience = 3;
  auto weights = torch::ones({2});
  save_snapshot(
      folder.path(),
      SnapshotContents::of(rank.optimizer(), {},
                           {{"best", &best}, {"patience", &patience}, {"weights", &weights}}));
  int whole = 7;
  double number = 8;
  EXPECT_TRUE(says(error_message_of([&] {
                     load_snapshot(folder.path(), SnapshotContents::of(rank.optimizer(), {},
                                                                       {{"best", &whole},
                                                                        {"patience", &patience},
                                                                        {"weights", &number}}));
                   }),
                   "best is 0.5 there, and a whole number that fits an int is expected here",
                   "weights is a tensor there, and a number is expected here"));
  EXPECT_EQ(whole, 7);
  EXPECT_EQ(number, 8);
}

}  // namespace
}  // namespace fleet
