// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "fleet/memory/offload/offload_file.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/replay/replay.h"

#include "tests/support/patience.h"
#include "tests/support/says.h"
#include "tests/train/block_net.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

DistributedStrategy recomputed(DistributedStrategy strategy,
                               std::vector<std::string> checkpoints = {
                                   "first", "block.0", "block.1", "block.2", "block.3"}) {
  strategy.recompute = true;
  strategy.recompute_configs.checkpoints = std::move(checkpoints);
  return strategy;
}

struct Ingredient {
  const char* name;
  DistributedStrategy strategy;
};

std::vector<Ingredient> ingredients() {
  return {
      {"alone", {}},
      {"merge", {.gradient_merge = true, .gradient_merge_configs = {.k_steps = 3}}},
      {"bf16", {.amp = true}},
      {"fp16", {.amp = true, .amp_configs = {.dtype = "fp16"}}},
      {"pure bf16", {.amp = true, .amp_configs = {.use_pure_bf16 = true}}},
      {"lars", {.lars = true, .lars_configs = {.lars_coeff = 0.05f}}},
      {"merge, bf16, lars",
       {.amp = true,
        .gradient_merge = true,
        .gradient_merge_configs = {.k_steps = 2},
        .lars = true,
        .lars_configs = {.lars_coeff = 0.05f}}},
  };
}

TEST(RecomputeTest, NamedCheckpointsTrainBitForBitAsPlain) {
  for (const auto& [name, strategy] : ingredients()) {
    SCOPED_TRACE(name);
    const BlockTraining plain{.strategy = strategy, .net = {.dropout = 0.3}};
    const auto expected = train_blocks(plain);
    EXPECT_EQ(expected.reports[0].memory.evicted, 0);
    for (const auto& checkpoints :
         {std::vector<std::string>{"first", "block.0", "block.1", "block.2", "block.3"},
          std::vector<std::string>{"block.1"}}) {
      auto changed = plain;
      changed.strategy = recomputed(strategy, checkpoints);
      const auto before = memory::replay_totals().recomputations;
      const auto outcome = train_blocks(changed);
      expect_same(outcome, expected);
      const auto parts = outcome.reports[0].micro_batches;
      const auto cuts = static_cast<int64_t>(checkpoints.size());
      EXPECT_EQ(outcome.reports[1].memory.segments, parts * cuts);
      EXPECT_GT(outcome.reports[1].memory.evicted_bytes, 0);
      // Without amp, all that the segment before "first" saved crosses it or came from outside.
      const int64_t least = checkpoints[0] == "first" ? cuts - 1 : cuts;
      EXPECT_GE(memory::replay_totals().recomputations - before, 4 * parts * least);
      EXPECT_LE(memory::replay_totals().recomputations - before, 4 * parts * cuts);
      EXPECT_EQ(memory::Region::alive(), 0);
    }
  }
}

TEST(RecomputeTest, TwoRanksTrainBitForBitAsPlain) {
  for (const auto& [name, strategy] : ingredients()) {
    SCOPED_TRACE(name);
    for (const bool sync : {false, true}) {
      BlockTraining setup{.strategy = strategy, .samples = 12};
      setup.strategy.sync_batch_norm = sync;
      const auto expected = train_blocks_on(2, setup);
      setup.strategy = recomputed(setup.strategy);
      expect_same(train_blocks_on(2, setup), expected);
    }
  }
}

// Rank 0 recomputes, rank 1 does not: a replay that took part in batch norm would wait for ever.
TEST(RecomputeTest, ReplayedBatchNormDoesNotCommunicate) {
  const BlockTraining setup{.strategy = {.sync_batch_norm = true}};
  const auto expected = train_blocks_on(2, setup);
  const auto recomputations = memory::replay_totals().recomputations;
  const auto outcome = train_blocks_on(2, setup, [](BlockTraining& own, int rank) {
    if (rank == 0) own.strategy = recomputed(own.strategy);
  });
  expect_same(outcome, expected);
  EXPECT_GT(memory::replay_totals().recomputations, recomputations);
  EXPECT_GT(outcome[0].reports[0].memory.evicted, 0);
}

// In the middle of its backward rank 0 waits until the last layer's gradient holds both ranks' sum.
TEST(RecomputeTest, GradientsAreSentWhileBackwardStillRecomputes) {
  run_ranks(2, [&](const Comm& comm) {
    BlockTraining setup{.strategy = {.fuse_all_reduce_ops = false}, .steps = 1};
    torch::Tensor sum;
    setup.prepare = [&](BlockNet& net) { sum = net->last->weight; };
    train_blocks(setup, comm);
    sum = sum.grad().clone();

    setup.strategy = recomputed(setup.strategy);
    bool arrived = false;
    setup.prepare = [&](BlockNet& net) {
      net->after_block = [&](int64_t block, torch::Tensor& x) {
        if (block != 1 || comm->rank() != 0) return;
        x.register_hook([&, net](torch::Tensor gradient) {
          const auto deadline =
              std::chrono::steady_clock::now() + launch::patient(std::chrono::seconds(10));
          while (!arrived && std::chrono::steady_clock::now() < deadline) {
            arrived = torch::equal(net->last->weight.grad(), sum);
          }
          return gradient;
        });
      };
    };
    train_blocks(setup, comm);
    if (comm->rank() == 0) {
      EXPECT_TRUE(arrived);
    }
  });
}

TEST(RecomputeTest, NamesThatTheForwardDoesNotHaveAreAllTold) {
  BlockTraining setup{.strategy = recomputed({}, {"block.0", "block,1", "blok.2", "pooler"})};
  const auto text = error_message_of([&] { train_blocks(setup); });
  EXPECT_TRUE(says(text, "[recompute] the forward never names these checkpoints:",
                   "'block,1' (did you mean 'block.1'", "'blok.2' (did you mean 'block.2'",
                   "- 'pooler'\n", "it names block.0, block.1, block.2, block.3, first"))
      << text;
  EXPECT_FALSE(says(text, "- 'block.0'"));
  setup.strategy = recomputed({}, {"block.0"});
  EXPECT_EQ(error_message_of([&] { train_blocks(setup); }), "");
}

TEST(RecomputeTest, AModelWithoutNamesIsToldHowToName) {
  auto net = small_net();
  const auto before = copies(net->parameters());
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), recomputed({}, {"a", "b"}),
                                 std::make_shared<comm::Communicator>());
  const auto text = error_message_of(
      [&] { optimizer.minimize([&] { return mean_loss(net, small_batch(4, 0)); }); });
  EXPECT_TRUE(says(text, "the forward names no tensor", "- 'a'\n", "- 'b'\n",
                   "x = fleet::checkpoint(layer->forward(x), \"name\")"))
      << text;
  expect_equal(copies(net->parameters()), before);
}

TEST(RecomputeTest, ANameMetTwiceCutsTwice) {
  auto strategy = recomputed({}, {"again"});
  auto net = small_net();
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), strategy,
                                 std::make_shared<comm::Communicator>());
  const auto batch = small_batch(4, 0);
  const auto report = optimizer.minimize([&] {
    auto x = batch.data;
    for (int i = 0; i < 2; ++i) x = checkpoint(x.sin() + x, "again");
    return torch::nn::functional::cross_entropy(net->forward(x), batch.target);
  });
  EXPECT_TRUE(report.updated);
  EXPECT_EQ(report.memory.segments, 2);
}

TEST(RecomputeTest, SaysOnceWhatItDid) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  train_blocks({.strategy = recomputed({})});
  const auto text =
      ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
  const auto first = text.find("a forward has 5 segments to recompute, and evicted ");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("segments to recompute", first + 30), std::string::npos) << text;
}

// ---- offload

constexpr int64_t kMiB = int64_t{1} << 20;

// Checkpoints of 1 MiB.
BlockTraining large() {
  BlockTraining setup{.strategy = recomputed({}, {}),
                      .net = {.blocks = 6, .width = 64, .dropout = 0.2},
                      .samples = 4096,
                      .steps = 2};
  setup.strategy.recompute_configs.checkpoints = BlockNetImpl(setup.net).checkpoints();
  setup.strategy.recompute_configs.enable_offload = true;
  return setup;
}

TEST(RecomputeOffloadTest, TrainsBitForBitAsPlainAndReportsWhatMoved) {
  for (const int k_steps : {1, 2}) {
    auto setup = large();
    setup.samples *= k_steps;
    setup.strategy.gradient_merge = k_steps > 1;
    setup.strategy.gradient_merge_configs.k_steps = k_steps;
    const auto outcome = train_blocks(setup);
    for (const auto& report : outcome.reports) {
      EXPECT_GE(report.memory.offloaded_bytes, 2 * kMiB);
      EXPECT_GE(report.memory.offload_stall_s, 0);
    }
    EXPECT_EQ(memory::Region::alive(), 0);
    setup.strategy.recompute = false;
    setup.strategy.recompute_configs = {};
    expect_same(outcome, train_blocks(setup));
  }
}

TEST(RecomputeOffloadTest, TwoRanksAndBf16TrainBitForBitAsPlain) {
  auto setup = large();
  setup.net.dropout = 0;
  setup.samples *= 2;  // bf16 has half the bytes
  setup.strategy.amp = true;
  setup.steps = 1;
  const auto outcome = train_blocks_on(2, setup);
  EXPECT_GE(outcome[1].reports[0].memory.offloaded_bytes, 2 * kMiB);
  setup.strategy.recompute = false;
  setup.strategy.recompute_configs = {};
  expect_same(outcome, train_blocks_on(2, setup));
}

TEST(RecomputeOffloadTest, CheckpointShapeIsComparedAndNeverNeeded) {
  auto setup = large();
  setup.steps = 1;
  setup.strategy.recompute_configs.checkpoint_shape = {4096, 32};
  EXPECT_TRUE(says(error_message_of([&] { train_blocks(setup); }),
                   "checkpoint 'first' has shape [4096, 64]",
                   "recompute_configs.checkpoint_shape says [4096, 32]"));
  setup.strategy.recompute_configs.checkpoint_shape = {4096, 64};
  EXPECT_EQ(error_message_of([&] { train_blocks(setup); }), "");
}

/// The open file of an offload in `folder`; -1: none.
int offload_descriptor(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error).string();
    if (!error && target.find(folder) == 0) return std::stoi(entry.path().filename().string());
  }
  return -1;
}

// What is still queued would be handed back from memory.
void all_is_written_or_has_failed() {
  while (memory::OffloadFile::wait_for_memory()) {
  }
}

/// A training whose first update goes wrong by `harm`, called at the end of its forward.
void fails_and_goes_on(const std::function<void()>& harm, const std::function<void()>& mend,
                       std::string_view expected_text) {
  const auto setup = large();
  BlockNet net(setup.net);
  DistributedOptimizer optimizer(
      std::make_unique<optim::Momentum>(net, optim::MomentumOptions{.lr = 0.1}), setup.strategy,
      std::make_shared<comm::Communicator>());
  const auto before = copies(net->parameters());
  const auto batch = small_batch(setup.samples, 0);
  bool is_harmed = true;
  const auto step = [&] {
    torch::manual_seed(3);
    return optimizer.minimize(batch, [&](const Batch& micro_batch) {
      const auto loss = net->loss(micro_batch);
      if (is_harmed) harm();
      return loss;
    });
  };
  const auto text = error_message_of(step);
  mend();
  EXPECT_TRUE(says(text, "[offload]", expected_text)) << text;
  expect_equal(copies(net->parameters()), before);
  EXPECT_EQ(optimizer.updates(), 0);
  EXPECT_EQ(memory::Region::alive(), 0) << "the failed graph is still there";

  is_harmed = false;
  EXPECT_TRUE(step().updated);
  BlockNet other(setup.net);
  DistributedOptimizer plain(
      std::make_unique<optim::Momentum>(other, optim::MomentumOptions{.lr = 0.1}), {},
      std::make_shared<comm::Communicator>());
  torch::manual_seed(3);
  plain.minimize(batch, [&](const Batch& micro_batch) { return other->loss(micro_batch); });
  expect_equal(copies(net->parameters()), copies(other->parameters()));
}

TEST(RecomputeOffloadTest, AFullDiskIsAnErrorAndTheNextStepIsFine) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = 2 * kMiB;
  setrlimit(RLIMIT_FSIZE, &limit);
  fails_and_goes_on([] { all_is_written_or_has_failed(); },
                    [&] { setrlimit(RLIMIT_FSIZE, &before); }, "cannot write");
}

TEST(RecomputeOffloadTest, ACutFileIsAnErrorAndTheNextStepIsFine) {
  const auto folder = std::filesystem::temp_directory_path() / "fleet_cut_file";
  std::filesystem::create_directories(folder);
  const char* const old = getenv("TMPDIR");
  const std::string old_text = old ? old : "";
  setenv("TMPDIR", folder.c_str(), 1);
  fails_and_goes_on(
      [&] {
        const int file = offload_descriptor(folder);
        ASSERT_GE(file, 0);
        all_is_written_or_has_failed();
        ASSERT_EQ(ftruncate(file, 0), 0);
      },
      [&] {
        if (old) {
          setenv("TMPDIR", old_text.c_str(), 1);
        } else {
          unsetenv("TMPDIR");
        }
      },
      "the file ends before that");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fleet
