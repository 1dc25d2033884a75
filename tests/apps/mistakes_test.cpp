// SPDX-License-Identifier: Apache-2.0
// What the programs say to mistakes that a tired person makes, and how they end.

#include <regex>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/launched.h"
#include "tests/support/says.h"

namespace fleet::launch {
namespace {

using Words = std::vector<std::string>;

constexpr std::chrono::seconds kPatience(100);

// Trains within a second where nothing is wrong.
const Words kBert = {"--layers=1", "--hidden=64",  "--heads=2",
                     "--seq=16",   "--samples=16", "--max_updates=1"};

Words joined(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

struct End {
  int code = -1;
  std::string text;
};

End end_of(const Words& command) {
  Started run(joined({"env", "OMP_NUM_THREADS=1"}, command));
  const int code = run.wait(kPatience);
  return {code, run.output()};
}

End end_in_shell(const std::string& script) { return end_of({"sh", "-c", script}); }

::testing::AssertionResult has_no_frames(const std::string& text) {
  for (const char* sign : {"frame #", "Exception raised from", "terminate called"}) {
    if (text.find(sign) != text.npos) return ::testing::AssertionFailure() << text;
  }
  return ::testing::AssertionSuccess();
}

struct Mistake {
  std::string name;
  std::string program;
  Words flags;
  std::string text;
  Words environment = {};
};

std::ostream& operator<<(std::ostream& out, const Mistake& mistake) { return out << mistake.name; }

class MistakeTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(MistakeTest, EndsWithTwoAndSaysWhatIsWrong) {
  const auto& mistake = GetParam();
  const auto small = mistake.program == "bert" ? kBert : Words();
  const auto [code, text] =
      end_of(joined(joined({"env"}, mistake.environment),
                    joined({beside(mistake.program)}, joined(small, mistake.flags))));
  EXPECT_EQ(code, 2) << text;
  EXPECT_TRUE(says(text, "error: [", mistake.text));
  EXPECT_TRUE(has_no_frames(text));
}

INSTANTIATE_TEST_SUITE_P(
    Programs, MistakeTest,
    ::testing::Values(
        Mistake{
            "TwoUpdateRules", "bert", {"--lars", "--lamb"}, "lars and lamb are two update rules"},
        Mistake{
            "NoStrategyFile", "bert", {"--strategy=/nowhere.json"}, "cannot read '/nowhere.json'"},
        Mistake{"AFolderAsStrategy", "bert", {"--strategy=/tmp"}, "cannot read '/tmp'"},
        Mistake{"StrategyThatIsNoJson",
                "bert",
                {"--strategy=/etc/passwd"},
                "/etc/passwd is not JSON, at 1:1"},
        Mistake{"BudgetThatIsNoAmount",
                "bert",
                {"--memory_budget=lots"},
                "'lots' is no amount of memory"},
        Mistake{"BudgetTooSmall", "bert", {"--memory_budget=1KiB"}, "[memory] "},
        Mistake{"ImagesTooSmall",
                "vgg16",
                {"--image_size=8", "--width=8", "--hidden=16", "--samples=8"},
                "images of 8 x 8 pixels, of which 5 stages leave nothing"},
        Mistake{"CheckpointThatIsNone",
                "bert",
                {"--recompute", "--recompute_configs.checkpoints=encoder.layer.9"},
                "the forward never names these checkpoints"},
        Mistake{"RateThatIsInfinite", "bert", {"--lr=inf"}, "--lr: inf is not a finite number"},
        Mistake{"NumberTooLarge",
                "bert",
                {"--batch_size=99999999999999999999"},
                "--batch_size: 99999999999999999999 is too large: the most is 9223372036854775807"},
        Mistake{"NoTokens", "bert", {"--data=/nowhere"}, "/nowhere/vocab.txt"},
        Mistake{"NoImages", "resnet50", {"--data=/nowhere"}, "/nowhere/train"},
        Mistake{"NoPairs", "transformer", {"--data=/nowhere"}, "/nowhere/vocab.txt"},
        Mistake{"NoWeights",
                "bert",
                {"--weights=/nowhere.safetensors"},
                "cannot read /nowhere.safetensors"},
        Mistake{"WeightsThatAreNone", "bert", {"--weights=/etc/passwd"}, "/etc/passwd"},
        Mistake{"SizesThatDoNotFit",
                "bert",
                {"--hidden=64", "--heads=3"},
                "64 hidden units do not divide into 3 heads"},
        Mistake{"ImageSize", "resnet50", {"--data=fashion_mnist", "--image_size=30"}, "not to 30"},
        Mistake{"TooFewClasses",
                "resnet50",
                {"--data=fashion_mnist", "--classes=3"},
                "Fashion-MNIST has 10 classes, and the model 3"},
        Mistake{"InstructionSet", "bert", {}, "FLEET_CPU is 'quantum'", {"FLEET_CPU=quantum"}},
        Mistake{"SharedMemory",
                "bert",
                {},
                "FLEET_SHARED_MEMORY='off' is neither 0 nor 1",
                {"FLEET_SHARED_MEMORY=off"}},
        Mistake{"Backtrace",
                "bert",
                {},
                "FLEET_BACKTRACE='maybe' is neither 0 nor 1",
                {"FLEET_BACKTRACE=maybe"}},
        Mistake{"Backend", "bert", {}, "there is no backend 'mpi'", {"FLEET_BACKEND=mpi"}},
        Mistake{"Threads", "bert", {}, "OMP_NUM_THREADS='many'", {"OMP_NUM_THREADS=many"}},
        Mistake{"InspectNothing",
                "fleet",
                {"inspect", "/nowhere.safetensors"},
                "cannot read /nowhere.safetensors"},
        Mistake{"PlanBudget",
                "fleet",
                {"plan", "--budget=lots"},
                "--budget: 'lots' is no amount of memory"}),
    [](const auto& info) { return info.param.name; });

TEST(MistakesTest, AStrategyMistakeIsNotRestarted) {
  Launched job(joined({"--nproc_per_node=2", "--max_restarts=3", beside("bert")},
                      joined(kBert, {"--samples=64", "--lars", "--lamb"})),
               {"env", "OMP_NUM_THREADS=1"});
  EXPECT_EQ(job.wait(kPatience), 2) << job.output();
  EXPECT_TRUE(says(job.output(), "lars and lamb are two update rules"));
  EXPECT_EQ(job.output().find("restart 1 of 3"), std::string::npos) << job.output();
}

TEST(MistakesTest, SizesThatNoMemoryHoldsAreASentence) {
  const auto wide = end_of({beside("resnet50"), "--width=1000000000000"});
  EXPECT_EQ(wide.code, 1) << wide.text;
  EXPECT_TRUE(says(wide.text, "error: [memory] the system has no 534",
                   " TiB left for a tensor\n  fix: make the model"));
  EXPECT_TRUE(has_no_frames(wide.text));
  const auto wider = end_of({beside("resnet50"), "--width=900000000000000000"});
  EXPECT_TRUE(
      says(wider.text, "error: [memory] ", "larger than any memory\n  fix: make the model"));
  EXPECT_TRUE(has_no_frames(wider.text));
  const auto told =
      end_of({"env", "FLEET_BACKTRACE=1", beside("resnet50"), "--width=1000000000000"});
  EXPECT_TRUE(says(told.text, "frame #"));
}

TEST(MistakesTest, OneValuePerChannelIsNoNanInTheTest) {
  const auto [code, text] =
      end_of({beside("resnet50"), "--depth=18", "--width=8", "--image_size=32", "--samples=1"});
  EXPECT_EQ(code, 1) << text;
  EXPECT_TRUE(says(text, "error: [batch_norm] one value per channel has no variance"));
}

// The smallest runs that there are.
TEST(MistakesTest, OneSamplePrintsNoNanAndOneOfEach) {
  const std::regex no_number(
      "[ =]-?(nan|inf)\\b|[^.0-9]1 (samples|updates|images|tokens|ranks)\\b");
  const std::vector<Words> commands = {
      joined({beside("bert")}, joined(kBert, {"--samples=1"})),
      {beside("transformer"), "--layers=1", "--hidden=64", "--seq=8", "--samples=1"},
      {beside("vgg16"), "--width=8", "--hidden=16", "--image_size=32", "--samples=1"},
      {beside("resnet50"), "--depth=18", "--width=8", "--image_size=64", "--samples=1"}};
  for (const auto& command : commands) {
    const auto [code, text] = end_of(command);
    EXPECT_EQ(code, 0) << text;
    EXPECT_TRUE(says(text, ", 1 sample in ", "[test] "));
    std::smatch found;
    EXPECT_FALSE(std::regex_search(text, found, no_number)) << found.str() << " in\n" << text;
  }
}

TEST(MistakesTest, AFullDiskUnderStandardOutputIsAnError) {
  const std::string wanted = "error: [output] standard output could not be written: No space left";
  for (const std::string words :
       {"fleet --help", "fleet --version", "fleetrun --help", "bert --help"}) {
    const auto [code, text] = end_in_shell(format("exec {} > /dev/full", beside(words)));
    EXPECT_EQ(code, 1) << words;
    EXPECT_TRUE(says(text, wanted)) << words;
  }
  std::string training = beside("bert");
  for (const auto& flag : kBert) training += " " + flag;
  const auto [code, text] = end_in_shell(format("exec {} > /dev/full", training));
  EXPECT_EQ(code, 1) << text;
  EXPECT_TRUE(says(text, wanted));
}

// A file that the program opens would get the closed stream's number, and its lines.
TEST(MistakesTest, AClosedStandardOutputIsAnErrorAndNoOtherFileGetsItsText) {
  const TemporaryFolder folder;
  std::string training = beside("bert");
  for (const auto& flag : kBert) training += " " + flag;
  const auto saved = (folder.path() / "bert.safetensors").string();
  const auto [code, text] = end_in_shell(format("exec {} --save={} >&-", training, saved));
  EXPECT_EQ(code, 1) << text;
  EXPECT_TRUE(says(text, "standard output could not be written: Bad file descriptor"));
  const auto seen = end_of({beside("fleet"), "inspect", saved});
  EXPECT_EQ(seen.code, 0) << seen.text;
}

TEST(MistakesTest, ALimitOfFileSizesIsFoundBeforeTraining) {
  const TemporaryFolder folder;
  std::string training = beside("bert");
  for (const auto& flag : kBert) training += " " + flag;
  const auto end = [&](const std::string& output) {
    return end_in_shell(format("(ulimit -f 20; {} {}; echo code $?) 2>&1 | cat", training, output))
        .text;
  };
  const auto saved = end("--save=" + (folder.path() / "bert.safetensors").string());
  EXPECT_TRUE(says(saved, "error: [weights] --save: bert.safetensors takes ",
                   "a file of this process may have ", "(ulimit -f)", "code 2\n"));
  const auto snapshots = end("--snapshot_dir=" + folder.path().string());
  EXPECT_TRUE(says(snapshots, "error: [snapshot] --snapshot_dir: the largest file of a snapshot",
                   "(ulimit -f)", "code 2\n"));
  // What is not known before: an error, where the signal would end the program without a word.
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += format("the quick brown fox jumps over {} dogs\n", i);
  const auto text = folder.write("text", lines).string();
  const auto tokenize = [&](int blocks) {
    return end_in_shell(
               format("(ulimit -f {0}; {1} tokenize {2} --train_vocab=60 --vocab={2}.vocab "
                      "--output={2}.tokens; echo code $?) 2>&1 | cat",
                      blocks, beside("fleet"), text))
        .text;
  };
  EXPECT_TRUE(says(tokenize(20), "error: [", ".tokens: File too large",
                   "fix: raise the limit of file sizes: ulimit -f unlimited", "code 1\n"));
  EXPECT_TRUE(
      says(tokenize(1), "error: [tokenize] --vocab: cannot write ", "File too large", "code 2\n"));
}

TEST(MistakesTest, EveryProgramTellsItsVersion) {
  for (const std::string name :
       {"any_model", "bert", "fleet", "fleetrun", "resnet50", "transformer", "vgg16"}) {
    const auto [code, text] = end_of({beside(name), "--version"});
    EXPECT_EQ(code, 0);
    EXPECT_TRUE(
        std::regex_match(text, std::regex(name + R"( \d+\.\d+\.\d+ \(LibTorch \d+\.\d+\.\d+\)
CPU capability: \S+
)"))) << text;
  }
}

TEST(MistakesTest, ABinaryOrEmptyTextLeavesNoVocabularyBehind) {
  const TemporaryFolder folder;
  const auto tokenize = [&](const std::string& bytes) {
    const auto file = folder.write("text", bytes).string();
    auto end = end_of({beside("fleet"), "tokenize", file, "--train_vocab=60",
                       "--vocab=" + (folder.path() / "vocab").string(),
                       "--output=" + (folder.path() / "out").string()});
    EXPECT_EQ(end.code, 2) << end.text;
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "vocab"));
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
    return end.text;
  };
  EXPECT_TRUE(says(tokenize(""), "there are no words to make a vocabulary of"));
  EXPECT_TRUE(says(tokenize("\n \n"), "there are no words to make a vocabulary of"));
  EXPECT_TRUE(says(tokenize(std::string("\x7f"
                                        "ELF\0\0",
                                        6)),
                   "text: no text, but a NUL at byte 4"));
}

}  // namespace
}  // namespace fleet::launch
