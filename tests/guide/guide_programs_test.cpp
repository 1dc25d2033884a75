// SPDX-License-Identifier: Apache-2.0
// The guide's programs (examples/guide) as they stand there, on two ranks: with the guide's kinds
// of files, of which there are few, and with its models, of which only the sizes are smaller
// (FLEET_BERT_OPTIONS, FLEET_RESNET_OPTIONS).

#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"
#include "fleet/data/images/synthetic_images.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

using Words = std::vector<std::string>;

constexpr std::chrono::seconds kPatience(110);
// Of a ResNet in mixed precision nothing is left in bf16.
constexpr const char* kInFp32 = "--amp_configs.custom_black_list=conv2d,linear";
// The losses of the guide's step lines.
std::vector<double> losses_in(const std::string& text) {
  static const std::regex line(
      "worker_index: 0, step[0-9]+ cost = ([0-9]+\\.[0-9]{6}), total time cost = [0-9.]+, "
      "step per second: [0-9.]+, speed: [0-9.]+\n");
  std::vector<double> losses;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), line);
       match != std::sregex_iterator(); ++match) {
    losses.push_back(std::stod((*match)[1]));
  }
  return losses;
}

class GuideProgramsTest : public ::testing::Test {
 protected:
  // ImageNet/train.txt and the JPEG files that it names.
  void write_images(int64_t count) {
    std::filesystem::create_directories(folder_.path() / "ImageNet");
    write_synthetic_images(folder_.path() / "ImageNet" / "train",
                           {.classes = 4, .per_class = count / 4, .width = 64, .height = 48});
  }

  // vocab.txt and a file of the guide's four fields in train_data. Each sentence repeats a word, so
  // that there is something to learn.
  void write_text(int64_t count) {
    std::ofstream vocabulary(folder_.path() / "vocab.txt");
    vocabulary << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int i = 0; i < 8; ++i) vocabulary << "word" << i << "\n";
    std::filesystem::create_directories(folder_.path() / "train_data");
    std::ofstream lines(folder_.path() / "train_data" / "part-0");
    for (int64_t i = 0; i < count; ++i) {
      const auto word = 5 + i % 8;
      lines << format(
          "2 {0} {0} {0} {0} 3 {0} {0} {0} 3;0 0 0 0 0 0 1 1 1 1;0 1 2 3 4 5 6 7 8 9;1\n", word);
    }
  }

  std::string output_of(const std::string& program, const Words& flags = {}) {
    Words words = {"--nproc_per_node=2", beside(program)};
    words.insert(words.end(), flags.begin(), flags.end());
    Launched run(words, {"env", "-C", folder_.path().string(), "OMP_NUM_THREADS=1",
                         "FLEET_BERT_OPTIONS={\"layers\": 3, \"hidden\": 32, \"heads\": 2, "
                         "\"intermediate\": 64}",
                         "FLEET_RESNET_OPTIONS={\"width\": 4}"});
    EXPECT_EQ(run.wait(kPatience), 0) << run.output();
    EXPECT_EQ(run.log(1), "") << "rank 0 speaks for all";
    return run.output();
  }

  TemporaryFolder folder_;
};

// Flags that a program does not read are not in its help, and those that it reads are.
TEST_F(GuideProgramsTest, FlagsAreWhatTheSourceReads) {
  const std::filesystem::path sources(FLEET_SOURCE_DIR "/examples/guide");
  int programs = 0;
  for (const auto& file : std::filesystem::directory_iterator(sources)) {
    if (file.path().extension() != ".cpp") continue;
    ++programs;
    const auto source = contents(file.path());
    Launched run({"--nproc_per_node=1", beside(file.path().stem()), "--help"});
    ASSERT_EQ(run.wait(kPatience), 0) << run.output();
    const auto help = run.log(0);
    for (const std::string flag : {"lr", "momentum", "beta1", "batch_size", "epochs", "seed"}) {
      const bool is_read = source.find("configs." + flag) != source.npos;
      EXPECT_EQ(help.find("\n  --" + flag + " ") != help.npos, is_read) << file.path() << flag;
    }
    EXPECT_EQ(help.find("--snapshot_dir"), help.npos) << file.path();
  }
  EXPECT_EQ(programs, 7);
}

TEST_F(GuideProgramsTest, Guide000RecomputesBert) {
  write_text(53 * 2 * 4);
  const auto text = output_of("bert_recompute", {"--lr=0.01"});
  const auto losses = losses_in(text);
  ASSERT_EQ(losses.size(), 4U) << "each rank had its own 53 of 106: " << text;
  EXPECT_LT(losses.back(), losses.front()) << text;
  EXPECT_TRUE(
      says(text, "layers 3 instead of 24",
           "[recompute] a forward has 3 segments to recompute, and evicted ",
           "|                     recompute=True <-> recompute_configs                     |",
           "encoder.layer.2"));
}

// Each of its sixteen checkpoints ends a segment to recompute; what follows the last is kept. The
// first loss is that of fp32, but not to the last digit: bf16 is in force.
TEST_F(GuideProgramsTest, Guide001CutsResnetAtItsOwnCheckpoints) {
  write_images(192);
  const auto text = output_of("train_fleet_recompute");
  const auto losses = losses_in(text);
  ASSERT_EQ(losses.size(), 3U) << text;
  EXPECT_TRUE(
      says(text, "checkpoints         res2a.add.output.5.tmp_0       |", "res5c.add.output.5.tmp_0",
           "[recompute] a forward has 16 segments to recompute, and evicted ",
           "|                           amp=True <-> amp_configs                           |"));
  const auto in_fp32 = losses_in(output_of("train_fleet_recompute", {kInFp32}));
  ASSERT_EQ(in_fp32.size(), losses.size());
  EXPECT_NEAR(losses[0], in_fp32[0], 0.05 * in_fp32[0]);
  EXPECT_NE(losses[0], in_fp32[0]);
}

// The two forms are different code, up to the optimizer's step.
TEST_F(GuideProgramsTest, Guide002MergesFourBatchesInBothForms) {
  write_images(8 * 2 * 8);
  const auto text = output_of("train_fleet_gradient_merge", {"--lr=0.1"});
  const auto losses = losses_in(text);
  ASSERT_EQ(losses.size(), 2U) << "eight batches, four for each update: " << text;
  const auto dynamic = losses_in(output_of("train_dygraph_gradient_merge", {"--lr=0.1"}));
  ASSERT_EQ(dynamic.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(dynamic[i], losses[i], 2e-6) << i;
  const auto unchanged = losses_in(output_of("train_fleet_gradient_merge", {"--lr=0"}));
  ASSERT_EQ(unchanged.size(), losses.size());
  EXPECT_NEAR(unchanged[0], losses[0], 2e-6) << "no update within the first four batches";
  EXPECT_GT(std::abs(unchanged[1] - losses[1]), 0.01) << "the update is in force behind them";
  EXPECT_TRUE(says(text, "k_steps                    4                   |",
                   "avg                   True                 |"));
}

// The programs of 001, in fp32, and of 003 train the same model on the same images, with Momentum
// and with LARS: their first losses are equal, and what they learn from them is not.
TEST_F(GuideProgramsTest, Guide003HasLars) {
  write_images(192);
  const auto text = output_of("resnet50_lars");
  const auto losses = losses_in(text);
  EXPECT_TRUE(says(text, "lars=True <-> lars_configs", "batch_norm", ".b_0"));
  const auto of_momentum =
      losses_in(output_of("train_fleet_recompute", {kInFp32, "--lr=0.01", "--momentum=0.9"}));
  ASSERT_EQ(losses.size(), 3U) << text;
  ASSERT_EQ(of_momentum.size(), losses.size());
  EXPECT_NEAR(losses[0], of_momentum[0], 2e-6);
  EXPECT_GT(std::abs(losses[1] - of_momentum[1]), 1e-3);
}

TEST_F(GuideProgramsTest, Guide003HasLamb) {
  write_text(16 * 2 * 8);
  const auto text = output_of("bert_lamb");
  const auto losses = losses_in(text);
  ASSERT_EQ(losses.size(), 8U) << text;
  EXPECT_LT(losses.back(), losses.front()) << text;
  EXPECT_TRUE(says(text, "lamb=True <-> lamb_configs", "layer_norm"));
}

// With an average after every update, which is where its interval begins, local SGD is SGD over all
// ranks. Ranks that were not averaged would each learn from their own half: that moves the second
// loss by 0.02. The third is not compared: a net of this width makes much of the last digit.
TEST_F(GuideProgramsTest, Guide004AveragesParameters) {
  write_images(192);
  const auto text = output_of("resnet50_localsgd");
  const auto losses = losses_in(text);
  EXPECT_TRUE(says(text, "adaptive_localsgd=True <-> adaptive_localsgd_configs"));
  EXPECT_EQ(text.find("from here on"), text.npos) << "the interval is no longer 1: " << text;
  EXPECT_EQ(text.find("in no average"), text.npos) << text;
  const auto of_sgd =
      losses_in(output_of("train_fleet_recompute", {kInFp32, "--lr=0.01", "--momentum=0"}));
  ASSERT_EQ(losses.size(), 3U) << text;
  ASSERT_EQ(of_sgd.size(), losses.size());
  EXPECT_NEAR(losses[0], of_sgd[0], 2e-6);
  EXPECT_NEAR(losses[1], of_sgd[1], 3e-3);
}

TEST(GuideProgramTexts, HaveAtMostFiftyLines) {
  int programs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(FLEET_SOURCE_DIR "/examples/guide")) {
    if (entry.path().extension() != ".cpp") continue;
    const auto text = contents(entry.path());
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 50) << entry.path();
    ++programs;
  }
  EXPECT_GE(programs, 7);
}

}  // namespace
}  // namespace fleet::launch
