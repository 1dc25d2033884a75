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
// The first group of every match.
std::vector<std::string> found_in(const std::string& text, const std::regex& line) {
  std::vector<std::string> found;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), line);
       match != std::sregex_iterator(); ++match) {
    found.push_back((*match)[1]);
  }
  return found;
}

std::vector<double> numbers_in(const std::string& text, const std::regex& line) {
  std::vector<double> numbers;
  for (const auto& number : found_in(text, line)) numbers.push_back(std::stod(number));
  return numbers;
}

// The losses of the guide's step lines.
std::vector<double> losses_in(const std::string& text) {
  static const std::regex line(
      "worker_index: 0, step[0-9]+ cost = ([0-9]+\\.[0-9]{6}), total time cost = [0-9.]+, "
      "step per second: [0-9.]+, speed: [0-9.]+\n");
  return numbers_in(text, line);
}

// "update 3: averages every 2"
std::vector<std::string> intervals_in(const std::string& text) {
  static const std::regex line("(update [0-9]+: averages every [0-9]+)");
  return found_in(text, line);
}

// What is left between the same arithmetic in another order.
constexpr double kRounding = 2e-5;

::testing::AssertionResult are_near(const std::vector<double>& losses,
                                    const std::vector<double>& expected, double tolerance) {
  if (losses.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << losses.size() << " losses instead of " << expected.size();
  }
  for (size_t i = 0; i < losses.size(); ++i) {
    if (std::abs(losses[i] - expected[i]) <= tolerance) continue;
    return ::testing::AssertionFailure()
           << "loss " << i << " is " << losses[i] << " instead of " << expected[i];
  }
  return ::testing::AssertionSuccess();
}

class GuideProgramsTest : public ::testing::Test {
 protected:
  // ImageNet/train.txt and the JPEG files that it names.
  void write_images(int64_t count, int64_t classes = 4) {
    std::filesystem::create_directories(folder_.path() / "ImageNet");
    write_synthetic_images(
        folder_.path() / "ImageNet" / "train",
        {.classes = classes, .per_class = count / classes, .width = 64, .height = 48});
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

  // Where the files are, and the sizes of the models.
  Words surroundings() const {
    return {"env",
            "-C",
            folder_.path().string(),
            "OMP_NUM_THREADS=1",
            "FLEET_BERT_OPTIONS={\"layers\": 3, \"hidden\": 32, \"heads\": 2, "
            "\"intermediate\": 64" +
                bert_ + "}",
            "FLEET_RESNET_OPTIONS={\"width\": 4" + resnet_ + "}"};
  }

  std::string output_of(const std::string& program, const Words& flags = {}) {
    Words words = {"--nproc_per_node=2", beside(program)};
    words.insert(words.end(), flags.begin(), flags.end());
    Launched run(words, surroundings());
    EXPECT_EQ(run.wait(kPatience), 0) << run.output();
    EXPECT_EQ(run.log(1), "") << "only rank 0 prints";
    return run.output();
  }

  // What by_hand.cpp prints.
  std::string by_hand(const Words& words) const {
    auto command = surroundings();
    command.push_back(beside("test_guide_by_hand"));
    command.insert(command.end(), words.begin(), words.end());
    Started run(command);
    EXPECT_EQ(run.wait(kPatience), 0) << run.output();
    return run.output();
  }

  static std::vector<double> by_hand_losses(const std::string& text) {
    static const std::regex line(" cost = ([0-9]+\\.[0-9]{6})\n");
    return numbers_in(text, line);
  }

  std::string bert_;  // more options, ", \"name\": value"
  std::string resnet_;
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

// The two forms are different code, up to the optimizer's step. One image is left over, so that a
// further batch would be empty on rank 1.
TEST_F(GuideProgramsTest, Guide002MergesFourBatchesInBothForms) {
  write_images(8 * 2 * 8 + 1, /*classes=*/3);
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
  // Batch norm has statistics of its own in each micro-batch, so this is no plain batch of 32.
  const auto expected = by_hand_losses(by_hand({"merge", "0.1"}));
  EXPECT_TRUE(are_near(losses, expected, kRounding));
  EXPECT_TRUE(are_near(dynamic, expected, kRounding));
  EXPECT_TRUE(says(text, "k_steps                    4                   |",
                   "avg                   True                 |"));
}

// The same updates by the formula, which Momentum's are not. The program has the last word on
// lars_configs, and says so.
TEST_F(GuideProgramsTest, Guide003HasLars) {
  write_images(192);
  const auto text = output_of("resnet50_lars", {"--lars_configs.lars_coeff=0.5"});
  EXPECT_TRUE(says(text, "lars=True <-> lars_configs", "batch_norm", ".b_0",
                   "lars_configs.lars_coeff = 0.5 of the command line is not in force: the program "
                   "sets 0.001"));
  const auto losses = losses_in(text);
  ASSERT_EQ(losses.size(), 3U) << text;
  EXPECT_TRUE(are_near(losses, by_hand_losses(by_hand({"lars"})), kRounding));
  EXPECT_FALSE(are_near(losses, by_hand_losses(by_hand({"momentum"})), 1e-3));
}

// The same updates by the formula, which Adam's are not. Without dropout, which draws by itself.
TEST_F(GuideProgramsTest, Guide003HasLamb) {
  write_text(16 * 2 * 8);
  bert_ = ", \"hidden_dropout\": 0, \"attention_dropout\": 0";
  const auto text = output_of("bert_lamb");
  EXPECT_TRUE(says(text, "lamb=True <-> lamb_configs", "layer_norm"));
  const auto losses = losses_in(text);
  ASSERT_EQ(losses.size(), 8U) << text;
  EXPECT_LT(losses.back(), losses.front()) << text;
  EXPECT_TRUE(are_near(losses, by_hand_losses(by_hand({"lamb"})), kRounding));
  EXPECT_FALSE(are_near(losses, by_hand_losses(by_hand({"adam"})), 0.01));
}

// Each rank's own SGD and the mean of their parameters, over intervals of 1 and of 2 updates: each
// image is of a class of its own, so that the loss rises now and then, and with it the interval.
// Few blocks that begin as the identity: another net of this width makes much of the last digit.
TEST_F(GuideProgramsTest, Guide004AveragesParametersAndAdaptsItsInterval) {
  write_images(64 * 6, 64 * 6);
  resnet_ = ", \"blocks\": [1, 1, 1, 1], \"zero_init_last_norm\": true";
  const std::string seed = "1";
  const auto text = output_of("resnet50_localsgd", {"--seed=" + seed});
  EXPECT_TRUE(says(text, "adaptive_localsgd=True <-> adaptive_localsgd_configs"));
  EXPECT_EQ(text.find("in no average"), text.npos) << text;
  const auto losses = losses_in(text);
  ASSERT_EQ(losses.size(), 6U) << text;
  const auto expected = by_hand({"local_sgd", seed});
  EXPECT_TRUE(are_near(losses, by_hand_losses(expected), kRounding)) << text << expected;
  EXPECT_FALSE(are_near(losses, by_hand_losses(by_hand({"alone", seed})), 10 * kRounding));
  EXPECT_EQ(intervals_in(text), intervals_in(expected));
  EXPECT_GE(intervals_in(expected).size(), 1U) << "the interval never changed";
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
