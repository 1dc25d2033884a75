// SPDX-License-Identifier: Apache-2.0
// The ready programs as a user starts them, on small models.

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include <gtest/gtest.h>

#include "fleet/applications/applications.h"
#include "fleet/core/text/format.h"
#include "fleet/data/images/synthetic_images.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

using Words = std::vector<std::string>;

constexpr std::chrono::seconds kPatience(100);

Words joined(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Words kOneThread = {"env", "OMP_NUM_THREADS=1"};

// What the program prints; it must end well.
std::string output_of(const std::string& program, const Words& flags) {
  Started run(joined(joined(kOneThread, {beside(program)}), flags));
  EXPECT_EQ(run.wait(kPatience), 0) << run.output();
  return run.output();
}

std::string output_of_two_ranks(const std::string& program, const Words& flags) {
  Launched run(joined({"--nproc_per_node=2", beside(program)}, flags), kOneThread);
  EXPECT_EQ(run.wait(kPatience), 0) << run.output();
  EXPECT_EQ(run.log(1), "") << "only rank 0 prints";
  return run.output();
}

// The same, for one that must not: its code and its text.
std::pair<int, std::string> failure_of(const std::string& program, const Words& flags) {
  Started run(joined({beside(program)}, flags));
  const int code = run.wait(kPatience);
  return {code, run.output()};
}

// The first group of every match.
std::vector<double> numbers(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<double> found;
  for (auto match = std::sregex_iterator(text.begin(), text.end(), regex);
       match != std::sregex_iterator(); ++match) {
    found.push_back(std::stod((*match)[1]));
  }
  return found;
}

const std::string kNumber = "[0-9]+\\.[0-9]{6}";
const std::string kStepLine = format(
    "worker_index: 0, step[0-9]+ cost = ({0}), total time cost = {0}, step per second: {0}, "
    "speed: {0}\n",
    kNumber);
const std::string kBatchLine =
    R"(\[Epoch 0, batch [0-9]+\] loss: ([0-9]\.[0-9]{5}), acc1: [01]\.[0-9]{5}, acc5: [01]\.[0-9]{5})"
    "\n";
const std::string kEpochLine =
    R"(\[train\] epoch 0: loss ([0-9.]+), [0-9]+ samples in [0-9.]+ s, [0-9.]+ samples/s, memory )"
    R"([0-9.]+ [MG]iB)"
    "\n";

// That there are `lines` of the pattern, and that the last loss is far below the first.
void expect_falling(const std::string& text, const std::string& pattern, size_t lines,
                    double to_share) {
  const auto losses = numbers(text, pattern);
  ASSERT_EQ(losses.size(), lines) << text;
  EXPECT_LT(losses.back(), to_share * losses.front()) << text;
  EXPECT_EQ(numbers(text, kEpochLine).size(), 1U) << text;
}

const Words kSmallResnet = {"--depth=18", "--width=8", "--image_size=32", "--samples=640"};
const Words kSmallVgg = {"--width=8", "--hidden=128", "--dropout=0", "--image_size=32",
                         "--lr=0.02"};
const Words kSmallBert = {"--layers=1", "--hidden=64", "--heads=2", "--seq=32"};
const Words kSmallTransformer = {"--layers=1", "--hidden=64", "--seq=8", "--lr=5e-3"};

TEST(AppsTest, Resnet50LearnsAndPrintsTheGuidesLines) {
  const auto text = output_of("resnet50", joined(kSmallResnet, {"--lr=0.05"}));
  expect_falling(text, kBatchLine, 4, 0.6);
  expect_falling(text, kStepLine, 4, 0.6);
  const auto right =
      numbers(text, R"(\[test\] epoch 0: loss [0-9.]+, acc1 ([0-9.]+), acc5 [0-9.]+, 128 images)");
  ASSERT_EQ(right.size(), 1U) << text;
  EXPECT_GT(right[0], 0.6) << "ten classes: guessing gives 0.1";
}

TEST(AppsTest, Vgg16LearnsAndPrintsTheGuidesLines) {
  const auto text =
      output_of("vgg16", joined(kSmallVgg, {"--samples=1280", "--batch_size=16", "--epochs=2"}));
  EXPECT_EQ(numbers(text, kBatchLine).size(), 16U) << text;
  EXPECT_EQ(numbers(text, kStepLine).size(), 32U) << text;
  const auto loss =
      numbers(text, R"(\[test\] epoch [01]: loss ([0-9.]+), acc1 [0-9.]+, acc5 [0-9.]+, 256 )");
  const auto right = numbers(text, "acc1 ([0-9.]+), acc5 [0-9.]+, 256 images");
  ASSERT_EQ(right.size(), 2U) << text;
  EXPECT_GT(right[1], 0.6) << "of images that it has not seen; ten classes: guessing gives 0.1";
  EXPECT_LT(loss[1], 1) << "guessing gives 2.3";
}

TEST(AppsTest, BertLearnsAndPrintsTheGuidesLines) {
  const auto text =
      output_of("bert", joined(kSmallBert, {"--samples=1280", "--lr=1e-2", "--dropout=0"}));
  expect_falling(text, kStepLine, 40, 0.85);
  const auto loss = numbers(text, R"(masked-LM loss ([0-9.]+) \(unigram [0-9.]+\))");
  const auto unigram = numbers(text, R"(\(unigram ([0-9.]+)\))");
  ASSERT_EQ(loss.size(), 1U) << text;
  ASSERT_EQ(unigram.size(), 1U);
  EXPECT_LT(loss[0], unigram[0] - 0.5);
}

TEST(AppsTest, TransformerLearnsAndPrintsTheGuidesLines) {
  const auto text =
      output_of("transformer", joined(kSmallTransformer, {"--samples=4000", "--max_updates=60"}));
  expect_falling(text, kStepLine, 60, 0.9);
  const auto right =
      numbers(text, R"(perplexity [0-9.]+, token accuracy ([0-9.]+), [0-9]+ tokens)");
  ASSERT_EQ(right.size(), 1U) << text;
  EXPECT_GT(right[0], 0.1) << "64 words: guessing gives 0.02";
}

// The loop of the ready programs stops in the middle of an epoch, and resumes there.
TEST(AppsTest, SigtermSavesAndTheSameCommandResumes) {
  const TemporaryFolder folder;
  const auto command =
      joined({"--nproc_per_node=2", beside("bert")},
             joined(kSmallBert, {"--samples=640", "--batch_size=8", "--save_every=1000",
                                 "--snapshot_dir=" + folder.path().string()}));
  Launched run(command, kOneThread);
  ASSERT_TRUE(eventually([&] { return numbers(run.output(), kStepLine).size() >= 3; }, kPatience));
  run.send(SIGTERM);
  ASSERT_EQ(run.wait(kPatience), 143) << run.output();
  const auto made =
      numbers(run.output(), R"(\[stop\] all ranks stop after update ([0-9]+): saved)");
  ASSERT_EQ(made.size(), 1U) << run.output();
  EXPECT_EQ(run.output().find("[test]"), std::string::npos) << "nothing that belongs to the end";

  Launched again(command, kOneThread);
  ASSERT_EQ(again.wait(kPatience), 0) << again.output();
  EXPECT_TRUE(
      says(again.output(), format("resumes after update {:.0f}, from ", made[0]), "[test]"));
  EXPECT_EQ(numbers(again.output(), kStepLine).size(), static_cast<size_t>(40 - made[0]));
}

TEST(AppsTest, Resnet50FromListsOfJpegFiles) {
  const TemporaryFolder folder;
  SyntheticImagesOptions images{.classes = 4, .per_class = 64, .width = 64, .height = 48};
  write_synthetic_images(folder.path() / "train", images);
  images.per_class = 8;
  images.seed = 1;
  write_synthetic_images(folder.path() / "val", images);
  const auto text =
      output_of("resnet50", joined(kSmallResnet, {"--data=" + folder.path().string(), "--classes=4",
                                                  "--epochs=4", "--lr=0.05"}));
  const auto right = numbers(text, "acc1 ([0-9.]+), acc5 [0-9.]+, 32 images");
  ASSERT_EQ(right.size(), 4U) << text;
  EXPECT_GT(right.back(), 0.6) << text;
}

// The cost of each update, as the guide's lines give it.
std::vector<double> costs(const std::string& text) { return numbers(text, kStepLine); }

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

// Each strategy shows in what is learned, or in what is said of the work that was done.
TEST(AppsTest, StrategiesOnTwoRanksTrainAsOneRankWithTheirUpdateRule) {
  const auto flags = joined(
      kSmallBert, {"--layers=2", "--samples=256", "--dropout=0", "--lr=5e-2", "--log_every=1"});
  const auto alone = joined(flags, {"--batch_size=32"});
  const auto shared = joined(flags, {"--batch_size=16", "--lamb", "--recompute", "--gradient_merge",
                                     "--gradient_merge_configs.k_steps=2"});
  const auto expected = costs(output_of("bert", joined(alone, {"--lamb"})));
  ASSERT_EQ(expected.size(), 8U);
  const auto text = output_of_two_ranks("bert", shared);
  EXPECT_TRUE(says(text, "recompute=True <-> recompute_configs", "encoder.layer.1",
                   "gradient_merge=True <-> gradient_merge_configs", "lamb=True <-> lamb_configs",
                   "[recompute] a forward has 2 segments", "256 samples in "));
  EXPECT_LT(largest_difference(costs(text), expected), 2e-5) << text;
  const auto adam = costs(output_of("bert", alone));
  EXPECT_GT(largest_difference(adam, expected), 0.02) << "the update rule would not show";

  const auto amp_text = output_of_two_ranks("bert", joined(shared, {"--amp"}));
  const auto amp = costs(amp_text);
  EXPECT_TRUE(says(amp_text, "amp=True <-> amp_configs"));
  EXPECT_LT(largest_difference(amp, expected), 0.01) << amp_text;
  EXPECT_GT(std::abs(amp.at(0) - expected[0]), 2e-5) << "the same weights, in bf16";
}

// The sum of two parts' gradients is twice their mean: half the rate trains the same.
TEST(AppsTest, GradientMergeOnTwoRanksSumsItsParts) {
  const auto flags = joined(kSmallVgg, {"--samples=256", "--batch_norm=false", "--weight_decay=0",
                                        "--momentum=0", "--log_every=1"});
  const auto expected = costs(output_of("vgg16", joined(flags, {"--batch_size=32", "--lr=0.1"})));
  ASSERT_EQ(expected.size(), 8U);
  const auto shared = joined(flags, {"--batch_size=16", "--lr=0.05"});
  const auto merged = output_of_two_ranks(
      "vgg16", joined(shared, {"--gradient_merge", "--gradient_merge_configs.k_steps=2",
                               "--gradient_merge_configs.avg=false"}));
  EXPECT_LT(largest_difference(costs(merged), expected), 2e-5) << merged;
  const auto plain = costs(output_of_two_ranks("vgg16", shared));
  EXPECT_GT(largest_difference(plain, expected), 5e-4) << "merging would not show";
}

TEST(AppsTest, AStrategyFileOnTwoRanks) {
  const TemporaryFolder folder;
  const auto file =
      folder.write("strategy.json", R"({"lars": true, "lars_configs": {"lars_coeff": 0.02},
                           "recompute": true, "recompute_configs": {"checkpoints": ["layer2.1"]},
                           "gradient_merge": true, "gradient_merge_configs": {"k_steps": 2}})");
  const auto text = output_of_two_ranks(
      "resnet50", joined(kSmallResnet, {"--strategy=" + file.string(), "--lr=2"}));
  EXPECT_TRUE(says(text, "lars=True <-> lars_configs", "layer2.1", "640 samples in ",
                   "[batch] global batch 64 = micro-batch 16 x 2 accumulated x 2 ranks; k_steps 2 "
                   "splits the batch of 32"));
  expect_falling(text, kBatchLine, 2, 0.95);
}

TEST(AppsTest, WeightsResumeWhereTheyWereSaved) {
  const TemporaryFolder folder;
  const auto file = (folder.path() / "bert.safetensors").string();
  const auto flags = joined(kSmallBert, {"--samples=64", "--lr=1e-2"});
  const std::string pattern = "masked-LM loss ([0-9.]+) ";
  const auto saved = numbers(output_of("bert", joined(flags, {"--save=" + file})), pattern);
  const auto text = output_of("bert", joined(flags, {"--weights=" + file, "--lr=0"}));
  EXPECT_TRUE(says(text, "[weights] started from " + file));
  EXPECT_EQ(numbers(text, pattern), saved);
}

// Tested on sentences that it has not seen, of words that it has.
TEST(AppsTest, BertFromRawText) {
  const TemporaryFolder folder;
  std::string seen, unseen;
  for (int i = 0; i < 600; ++i) {
    const bool is_seen = (i % 7 + i % 5) % 3 != 0;
    (is_seen ? seen : unseen) += format("the {} cat sat on the {} mat.\n", i % 7, i % 5);
  }
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  const Words to_samples = {"--vocab=" + path("vocab.txt"), "--max_seq_len=32"};
  folder.write("seen", seen);
  folder.write("unseen", unseen);
  output_of("fleet",
            joined({"tokenize", path("seen"), "--train_vocab=60", "--output=" + path("seen.gz")},
                   to_samples));
  output_of("fleet",
            joined({"tokenize", path("unseen"), "--output=" + path("unseen.gz")}, to_samples));
  folder.write("train.txt", "seen.gz\n");
  folder.write("val.txt", "unseen.gz\n");
  const auto said =
      output_of("bert", joined(kSmallBert, {"--data=" + folder.path().string(), "--lr=1e-2",
                                            "--epochs=8", "--log_every=100", "--dropout=0"}));
  const auto loss = numbers(said, "masked-LM loss ([0-9.]+) ");
  const auto unigram = numbers(said, R"(\(unigram ([0-9.]+)\))");
  const auto right = numbers(said, "masked-LM accuracy ([0-9.]+)");
  ASSERT_EQ(loss.size(), 8U) << said;
  EXPECT_LT(loss.back(), unigram.back() / 2) << said;
  EXPECT_GT(right.back(), 0.6) << "all but the numbers can be known\n" << said;
}

TEST(AppsTest, TransformerFromTwoTexts) {
  const TemporaryFolder folder;
  folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\ntwo\neins\nzwei\n");
  std::string source, target;
  for (int i = 0; i < 256; ++i) {
    source += i % 3 == 0 ? "one two two\n" : "two one\n";
    target += i % 3 == 0 ? "eins zwei zwei\n" : "zwei eins\n";
  }
  for (const char* part : {"train", "val"}) {
    folder.write(format("{}.src", part), source);
    folder.write(format("{}.tgt", part), target);
  }
  const auto said =
      output_of("transformer",
                joined(kSmallTransformer, {"--data=" + folder.path().string(), "--epochs=12"}));
  const auto right = numbers(said, "token accuracy ([0-9.]+), [0-9]+ tokens");
  ASSERT_EQ(right.size(), 12U) << said;
  EXPECT_GT(right.back(), 0.8) << "four tokens: guessing gives 0.25";
}

TEST(AppsTest, MistakesAreNamed) {
  const auto [usage, text] = failure_of("resnet50", {"--depth=34"});
  EXPECT_EQ(usage, 2);
  EXPECT_TRUE(says(text, "error: [app] there is no ResNet of 34 layers",
                   "fix: use --depth 18, 50, 101 or 152"));
  const auto [flag, flag_text] = failure_of("vgg16", {"--image-siz=3", "--dropout=1"});
  EXPECT_EQ(flag, 2);
  EXPECT_TRUE(says(flag_text, "unknown flag --image-siz (did you mean '--image_size'",
                   "--dropout: 1 is out of range"));
  const auto [missing, missing_text] = failure_of("bert", {"--data=/nowhere"});
  EXPECT_EQ(missing, 2);
  EXPECT_TRUE(says(missing_text, "/nowhere/vocab.txt"));
  const auto [images, images_text] = failure_of("resnet50", {"--data=/nowhere"});
  EXPECT_EQ(images, 2);
  EXPECT_TRUE(says(images_text, "error: [data] ", "/nowhere/train"));
}

// What holds for the program of every application.
class EveryProgramTest : public testing::TestWithParam<std::string> {
 protected:
  EveryProgramTest() {
    for (const auto& application : applications::all_applications()) {
      if (application.trial.program != GetParam()) continue;
      flags_ = application.trial.flags;
      is_text_ = application.samples == applications::SampleKind::kTokens;
    }
  }

  const std::string program_ = GetParam();
  Words flags_;  // for a small model
  bool is_text_ = false;
};

Words all_programs() {
  Words programs;
  for (const auto& application : applications::all_applications()) {
    programs.emplace_back(application.trial.program);
  }
  return programs;
}
INSTANTIATE_TEST_SUITE_P(, EveryProgramTest, testing::ValuesIn(all_programs()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryProgramTest, TrainsAndTestsOnTwoRanks) {
  const auto text = output_of_two_ranks(
      program_, joined(flags_, {"--samples=128", "--batch_size=16", "--log_every=1",
                                "--max_updates=3", "--recompute"}));
  EXPECT_EQ(numbers(text, kStepLine).size(), 3U) << text;
  EXPECT_TRUE(says(text, "[batch] global batch 32 = micro-batch 16 x 1 accumulated x 2 ranks",
                   "[recompute] a forward has ", "\n[test] epoch 0: "));
}

TEST_P(EveryProgramTest, HelpEndsWithTwoCommandsOfThisProgram) {
  const auto text = output_of(program_, {"--help"});
  const auto examples = text.substr(text.find("\nExamples:\n"));
  EXPECT_TRUE(says(examples, "\n  " + beside(program_) + " --",
                   "\n  fleetrun --nproc_per_node 2 " + beside(program_) + " --"));
  for (const char* flag : {"--lr", "--batch_size", "--epochs", "--seed", "--strategy", "--data",
                           "--max_updates", "--snapshot_dir"}) {
    EXPECT_TRUE(says(text, format("\n  {} ", flag)));
  }
}

TEST_P(EveryProgramTest, FlagsOfAnotherOptimizerAreNoFlags) {
  const Words momentum = {"momentum"}, adam = {"beta1", "beta2", "epsilon"};
  const auto text = output_of(program_, {"--help"});
  const bool is_adam = is_text_;  // images are trained with Momentum
  for (const auto& name : is_adam ? adam : momentum) {
    EXPECT_TRUE(says(text, format("\n  --{} ", name)));
  }
  for (const auto& name : is_adam ? momentum : adam) {
    EXPECT_EQ(text.find("--" + name), text.npos);
    const auto [code, error] = failure_of(program_, {"--" + name, "0.5"});
    EXPECT_EQ(code, 2);
    EXPECT_TRUE(says(error, format("--{}: this program does not read it", name)));
  }
}

// Between averages each rank has losses and accuracies of its own; an epoch's line is about all.
TEST(AppsTest, TheEpochsLineCountsEverySampleOnceUnderLocalSgd) {
  const Words local = {"--localsgd", "--localsgd_configs.k_steps=3", "--batch_size=16",
                       "--log_every=1"};
  const auto images = output_of_two_ranks(
      "resnet50", joined(kSmallResnet, joined(local, {"--samples=192", "--lr=0.05"})));
  EXPECT_TRUE(says(
      images, ", 192 samples in ", "[train] local SGD: the lines of batches are about rank 0 alone",
      "[batch] batch 16 of this rank = micro-batch 16 x 1 accumulated; with local SGD each "
      "of 2 ranks updates with its own"));
  EXPECT_EQ(numbers(images, kBatchLine).size(), 6U) << images;
  const auto text =
      output_of_two_ranks("bert", joined(kSmallBert, joined(local, {"--samples=64"})));
  EXPECT_TRUE(says(text, ", 64 samples in "));
}

}  // namespace
}  // namespace fleet::launch
