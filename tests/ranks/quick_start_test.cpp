// SPDX-License-Identifier: Apache-2.0
// The quick start as a newcomer meets it, with a small data set that this file makes.

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/data/idx_bytes.h"
#include "tests/data/temporary_folder.h"
#include "tests/ranks/ranks.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

constexpr uint32_t kSide = 28;

// Class k is a bright bar across line 2 k + 4, so that a few updates tell them apart.
std::string images_of(uint32_t samples) {
  std::string bytes = idx_header({samples, kSide, kSide});
  for (uint32_t sample = 0; sample < samples; ++sample) {
    const uint32_t bar = 2 * (sample % 10) + 4;
    for (uint32_t pixel = 0; pixel < kSide * kSide; ++pixel) {
      const uint32_t grain = (sample * 31 + pixel * 17) % 40;
      bytes += static_cast<char>(pixel / kSide == bar ? 200 + grain : grain);
    }
  }
  return bytes;
}

std::string labels_of(uint32_t samples) {
  std::string bytes = idx_header({samples});
  for (uint32_t sample = 0; sample < samples; ++sample) bytes += static_cast<char>(sample % 10);
  return bytes;
}

class QuickStartTest : public testing::Test {
 protected:
  void write_data(uint32_t train, uint32_t test) const {
    data_.write("train-images-idx3-ubyte", images_of(train));
    data_.write("train-labels-idx1-ubyte", labels_of(train));
    data_.write("t10k-images-idx3-ubyte", images_of(test));
    data_.write("t10k-labels-idx1-ubyte", labels_of(test));
  }

  Words program(const Words& flags) const {
    Words words = {beside("fashion_mnist"), "--data_dir=" + data_.path().string()};
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }

  Words on_ranks(int ranks, const Words& flags) const {
    Words words = {format("--nproc_per_node={}", ranks)};
    const auto rest = program(flags);
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  }

  TemporaryFolder data_;
};

// The words of a command in run.sh, from behind `program` on, with smaller batches.
Words command_of_run_sh(const std::string& program) {
  std::string text = contents(std::filesystem::path(FLEET_SOURCE_DIR) / "run.sh");
  text.erase(0, text.find(program) + program.size());
  std::istringstream words(text.substr(0, text.find_first_of("\"#")));
  Words flags;
  for (std::string word; words >> word;) {
    if (word == "\\") continue;
    if (!flags.empty() && flags.back() == "--batch_size") word = "128";
    if (!flags.empty() && flags.back().ends_with(".micro_batch_size")) word = "32";
    flags.push_back(word);
  }
  return flags;
}

TEST_F(QuickStartTest, RunShTrainsWithALargeBatchWithinItsBudget) {
  write_data(2560, 100);
  const auto flags = command_of_run_sh("--nproc_per_node 2 build/bin/fashion_mnist --batch_size");
  Words all = {"--batch_size", "128"};
  all.insert(all.end(), flags.begin() + 1, flags.end());
  ASSERT_TRUE(std::ranges::find(all, "--lars") != all.end());
  Launched run(on_ranks(2, all));
  ASSERT_EQ(run.wait(std::chrono::seconds(120)), 0) << run.output();
  EXPECT_TRUE(says(run.output(),
                   "[batch] global batch 256 = micro-batch 32 x 4 accumulated x 2 ranks",
                   "[memory] plain training of 128 samples at once would take about ",
                   "the budget in force is 96.00 MiB", "[test] epoch 8: top-1 "));
}

TEST_F(QuickStartTest, RunShsHintPrintsAPlan) {
  write_data(600, 100);
  Launched run(on_ranks(1, command_of_run_sh("\n  build/bin/fashion_mnist ")));
  ASSERT_EQ(run.wait(std::chrono::seconds(120)), 0) << run.output();
  EXPECT_TRUE(says(run.output(), "predicted peak "));
}

TEST_F(QuickStartTest, AfterAKillTheSameCommandGoesOnAndEndsAlike) {
  write_data(600, 100);
  const Words flags = {"--epochs=2", "--batch_size=5"};
  Launched whole(on_ranks(2, flags));
  ASSERT_EQ(whole.wait(std::chrono::seconds(60)), 0) << whole.output();
  const auto last_line = [](const std::string& text) {
    const auto begin = text.find("epoch 2: ");
    return text.substr(begin, text.find('\n', begin) - begin);
  };

  const auto dir = data_.path() / "snapshots";
  auto saving = flags;
  saving.insert(saving.end(), {"--snapshot_dir=" + dir.string(), "--save_every=7"});
  {
    Launched killed(on_ranks(2, saving));
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(dir / "step-00000014"); },
                           std::chrono::seconds(60)))
        << killed.output();
    killed.send(SIGKILL);
    killed.wait();
  }
  Launched again(on_ranks(2, saving));
  ASSERT_EQ(again.wait(std::chrono::seconds(60)), 0) << again.output();
  EXPECT_TRUE(says(again.output(), "[snapshot] resumes after update ", dir.string()));
  EXPECT_EQ(last_line(again.output()), last_line(whole.output()));
}

TEST_F(QuickStartTest, TwoRanksLearnAndSaySo) {
  write_data(600, 100);
  Launched training(on_ranks(2, {"--epochs=1", "--batch_size=10"}));
  ASSERT_EQ(training.wait(std::chrono::seconds(60)), 0) << training.output();
  const auto text = training.output();
  EXPECT_TRUE(says(text, "[init] 2 ranks (RANK, WORLD_SIZE)", "DistributedStrategy Overview",
                   "fuse_grad_size_in_MB",
                   "[data_parallel] Find all_reduce operators: 11. To make the speed faster, some "
                   "all_reduce ops are fused during training, after fusion, the number of "
                   "all_reduce ops is 1.",
                   "[test] epoch 1: top-1 "));
  EXPECT_TRUE(says(text, "worker_index: 0, step0 cost = ", "epoch 1/1: "));
  EXPECT_EQ(text.find('\r'), text.npos) << "a pipe gets plain lines";
  const auto at = text.find("top-1 ");
  ASSERT_NE(at, text.npos);
  EXPECT_GT(std::stod(text.substr(at + 6)), 60) << "ten kinds: guessing gives 10 %";
  EXPECT_EQ(training.log(1), "") << "rank 0 speaks for all";
  EXPECT_EQ(noise(training.log(0)), "");
}

TEST_F(QuickStartTest, MissingDataNamesThePackage) {
  Launched training(on_ranks(2, {}));
  EXPECT_EQ(training.wait(), 2);
  EXPECT_TRUE(says(training.output(),
                   "error: [data] Fashion-MNIST is not in " + data_.path().string(),
                   "fix: apt-get install dataset-fashion-mnist"));
}

TEST_F(QuickStartTest, TruncatedFileIsNamed) {
  write_data(20, 20);
  data_.write("train-images-idx3-ubyte", images_of(20).substr(0, 5000));
  Started training(program({}));
  EXPECT_EQ(training.wait(), 2);
  EXPECT_TRUE(says(error_in(training.output()), "train-images-idx3-ubyte: ", "15680 bytes",
                   "fix: fetch the file again"));
}

TEST_F(QuickStartTest, MoreRanksThanSamples) {
  write_data(2, 20);
  Launched training(on_ranks(3, {}));
  EXPECT_EQ(training.wait(), 2);
  EXPECT_TRUE(
      says(training.output(), "3 ranks are more than the 2 samples, so some would never train"));
}

TEST_F(QuickStartTest, UnknownFlagSuggestsTheNearest) {
  Started training(program({"--epoch=1", "--batch-siz=3"}));
  EXPECT_EQ(training.wait(), 2);
  EXPECT_TRUE(says(error_in(training.output()), "unknown flag --epoch (did you mean '--epochs'?)",
                   "unknown flag --batch-siz (did you mean '--batch_size'"));
}

TEST_F(QuickStartTest, HelpShowsEveryDefault) {
  Started training(program({"--help"}));
  EXPECT_EQ(training.wait(), 0);
  const auto text = training.output();
  EXPECT_TRUE(says(text, "usage: fashion_mnist [flags]", "--epochs N", "\nExamples:\n",
                   "fleetrun --nproc_per_node 2 "));
  std::istringstream lines(text);
  int flags = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  --")) continue;
    ++flags;
    EXPECT_NE(line.find("default "), line.npos) << line;
  }
  EXPECT_GT(flags, 20);
}

TEST_F(QuickStartTest, AllMistakesOfAStrategyFileAtOnce) {
  const auto file = data_.write("strategy.json",
                                R"({"amp": "yes", "recomput": true, "fuse_grad_size_in_MB": -1})");
  Started training(program({"--strategy=" + file.string()}));
  EXPECT_EQ(training.wait(), 2) << training.output();
  EXPECT_TRUE(says(error_in(training.output()), "strategy.json", "amp", "'recompute'", "-1"));
}

TEST_F(QuickStartTest, LocalSgdIsAFlagAway) {
  write_data(600, 100);
  Launched training(
      on_ranks(2, {"--epochs=1", "--batch_size=10", "--localsgd", "--localsgd_configs.k_steps=4"}));
  ASSERT_EQ(training.wait(std::chrono::seconds(60)), 0) << training.output();
  const auto text = training.output();
  EXPECT_TRUE(says(text, "localsgd=True <-> localsgd_configs"));
  const auto at = text.find("top-1 ");
  ASSERT_NE(at, text.npos);
  EXPECT_GT(std::stod(text.substr(at + 6)), 60);
  EXPECT_EQ(text.find("in no average"), text.npos) << text;
}

}  // namespace
}  // namespace fleet::launch
