// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/options/command_line.h"

#include <sstream>

#include <gtest/gtest.h>
#include <torch/version.h>

#include "fleet/core/error.h"

namespace fleet {
namespace {

struct Configs {
  float scale = 32768;
  std::vector<std::string> checkpoints = {};
  std::vector<int64_t> shape = {};

  bool operator==(const Configs&) const = default;
};
const FieldList& fields_of(const Configs*) {
  static const FieldList list{.area = "configs",
                              .fields = {
                                  field<&Configs::scale>("scale", "first scale").above(0),
                                  field<&Configs::checkpoints>("checkpoints", "names"),
                                  field<&Configs::shape>("shape", "sizes"),
                              }};
  return list;
}

struct Options {
  double lr = 0.1;
  int batch_size = 32;
  bool amp = false;
  bool fuse = true;
  std::string name = "net";
  Configs amp_configs = {};

  bool operator==(const Options&) const = default;
};
const FieldList& fields_of(const Options*) {
  static const FieldList list{.area = "options",
                              .fields =
                                  {
                                      field<&Options::lr>("lr", "learning rate").at_least(0),
                                      field<&Options::batch_size>("batch_size", "per update")
                                          .at_least(1)
                                          .in_unit("samples"),
                                      field<&Options::amp>("amp", "mixed precision"),
                                      field<&Options::fuse>("fuse", "fused buckets"),
                                      field<&Options::name>("name", "of the run"),
                                      field<&Options::amp_configs>("amp_configs", ""),
                                  },
                              .absent = {{"dgc", "is not here"}}};
  return list;
}

CommandLine line_for(Options& options) {
  return {.about = "trains", .groups = {{"Options", options}}, .examples = {"one", "two"}};
}

void parse_words(const CommandLine& line, const std::vector<const char*>& words) {
  std::vector<const char*> argv = {"build/bin/train"};
  argv.insert(argv.end(), words.begin(), words.end());
  parse(line, static_cast<int>(argv.size()), argv.data());
}

Options parsed(const std::vector<const char*>& words, Options options = {}) {
  parse_words(line_for(options), words);
  return options;
}

std::vector<std::string> problems(const std::vector<const char*>& words) {
  Options options;
  try {
    parse_words(line_for(options), words);
  } catch (const UsageError& error) {
    EXPECT_EQ(options, Options()) << "an error must leave the options as they were";
    std::istringstream text(error.what());
    std::vector<std::string> lines;
    for (std::string one; std::getline(text, one);) lines.push_back(one);
    EXPECT_EQ(lines.front(), "[command line] train cannot start:");
    EXPECT_EQ(lines.back(), "  fix: train --help lists every flag");
    return {lines.begin() + 1, lines.end() - 1};
  }
  return {};
}

TEST(CommandLineTest, ValueAfterASpaceOrAnEqualsSign) {
  EXPECT_EQ(parsed({"--batch_size", "64", "--lr=1e-3"}), (Options{.lr = 1e-3, .batch_size = 64}));
  EXPECT_EQ(parsed({"--name", "-"}).name, "-");
  EXPECT_EQ(parsed({"--name="}).name, "");
  EXPECT_EQ(parsed({"--name=a=b"}).name, "a=b");
}

TEST(CommandLineTest, DashAndUnderscoreAreTheSame) {
  EXPECT_EQ(parsed({"--batch-size", "8", "--amp-configs.scale=4", "--no-fuse"}),
            (Options{.batch_size = 8, .fuse = false, .amp_configs = {.scale = 4}}));
}

TEST(CommandLineTest, SwitchesTurnOnAndOff) {
  EXPECT_TRUE(parsed({"--amp"}).amp);
  EXPECT_TRUE(parsed({"--amp=true"}).amp);
  EXPECT_TRUE(parsed({"--amp", "true"}).amp);
  EXPECT_TRUE(parsed({"--amp", "--lr", "1"}).amp);
  for (const auto& off : {"--no_fuse", "--fuse=false", "--fuse=0", "--fuse=off"}) {
    EXPECT_FALSE(parsed({off}).fuse) << off;
  }
  EXPECT_FALSE(parsed({"--fuse", "false"}).fuse);
}

TEST(CommandLineTest, ListsComeByCommasOrRepeatedAndReplace) {
  const Options before{.amp_configs = {.checkpoints = {"old"}}};
  EXPECT_EQ(parsed({"--amp_configs.checkpoints", "a,b"}, before).amp_configs.checkpoints,
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parsed({"--amp_configs.checkpoints=a", "--amp_configs.checkpoints=b"}, before)
                .amp_configs.checkpoints,
            (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(parsed({"--amp_configs.checkpoints="}, before).amp_configs.checkpoints.empty());
  EXPECT_EQ(parsed({"--amp_configs.shape", "2,-3"}).amp_configs.shape,
            (std::vector<int64_t>{2, -3}));
}

TEST(CommandLineTest, TheLastOfARepeatedFlagCounts) {
  EXPECT_EQ(parsed({"--lr", "1", "--lr", "2"}).lr, 2);
  EXPECT_FALSE(parsed({"--amp", "--no_amp"}).amp);
}

TEST(CommandLineTest, AllProblemsComeInOneError) {
  EXPECT_EQ(problems({"--batch_size", "many", "--lr=-1", "--bach_size=3", "--name", "--amp=maybe",
                      "--no_amp=1", "--dgc", "stray", "--amp_configs.shape", "1,x", "left"}),
            (std::vector<std::string>{
                "  - --batch_size: expected a whole number below 2^31, got 'many'",
                "  - --lr: -1 is out of range: it must be at least 0",
                "  - unknown flag --bach_size (did you mean '--batch_size'?)",
                "  - --name needs a value: a text",
                "  - --amp: expected true or false, got 'maybe'",
                "  - --no_amp takes no value, got '1'",
                "  - --dgc: is not here",
                "  - --amp_configs.shape: expected a list of whole numbers, got '1,x'",
                "  - 'left' is not expected: this program takes flags only",
            }));
}

TEST(CommandLineTest, EveryWrongFlagIsNamedAndTheFirstTwentyGetAHint) {
  const std::vector<const char*> flags(1000, "--bach_size=3");
  const auto lines = problems(flags);
  ASSERT_EQ(lines.size(), flags.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i], i < 20 ? "  - unknown flag --bach_size (did you mean '--batch_size'?)"
                               : "  - unknown flag --bach_size");
  }
}

TEST(CommandLineTest, NegativeNumbersAreValuesAndOtherDashesAreFlags) {
  EXPECT_EQ(problems({"--lr", "-.5"}),
            std::vector<std::string>{"  - --lr: -0.5 is out of range: it must be at least 0"});
  EXPECT_EQ(problems({"--lr"}), std::vector<std::string>{"  - --lr needs a value: a number"});
  EXPECT_EQ(problems({"-x"}),
            std::vector<std::string>{"  - unknown flag -x: flags start with two dashes"});
  EXPECT_EQ(problems({"--lr", "0x10"}).size(), 1u);
  EXPECT_EQ(problems({"--lr", "inf"}),
            std::vector<std::string>{"  - --lr: inf is not a finite number"});
  EXPECT_EQ(problems({"--batch_size", "99999999999999999999"}),
            std::vector<std::string>{"  - --batch_size: 99999999999999999999 is too large: the "
                                     "most is 2147483647"});
  EXPECT_EQ(problems({"--batch_size", "1.0"}).size(), 1u);
  EXPECT_EQ(problems({"--batch_size", ""}).size(), 1u);
  EXPECT_EQ(problems({"--no_lr"}).size(), 1u);
}

TEST(CommandLineTest, PositionalArgumentsGoToTheCallerWhoWantsThem) {
  Options options;
  std::vector<std::string> rest;
  auto line = line_for(options);
  line.positional = &rest;
  parse_words(line, {"a", "--lr", "3", "b", "--", "--amp", "-h"});
  EXPECT_EQ(rest, (std::vector<std::string>{"a", "b", "--amp", "-h"}));
  EXPECT_EQ(options, Options{.lr = 3});
}

TEST(CommandLineTest, ALauncherLeavesItsProgramsFlagsAlone) {
  Options options;
  std::vector<std::string> rest;
  auto line = line_for(options);
  line.positional = &rest;
  line.stop_at_positional = true;
  parse_words(line, {"--lr", "3", "program", "--lr", "4", "--help"});
  EXPECT_EQ(rest, (std::vector<std::string>{"program", "--lr", "4", "--help"}));
  EXPECT_EQ(options, Options{.lr = 3});
}

TEST(CommandLineTest, HelpHasALineForEachFlagWithUnitAndDefault) {
  Options options{.lr = 0.05};
  for (const auto* flag : {"--help", "-h"}) {
    try {
      parse_words(line_for(options), {"--wrong", flag});
      FAIL();
    } catch (const HelpRequested& help) {
      EXPECT_STREQ(
          help.what(),
          "train: trains\n"
          "\n"
          "usage: train [flags]\n"
          "A switch is turned off by --no_NAME; '-' and '_' are the same in a name. --version "
          "prints "
          "the versions.\n"
          "\n"
          "Options:\n"
          "  --lr X                             learning rate (at least 0, default 0.05)\n"
          "  --batch_size N                     per update (in samples, at least 1, default 32)\n"
          "  --amp                              mixed precision (default off)\n"
          "  --fuse                             fused buckets (default on)\n"
          "  --name TEXT                        of the run (default net)\n"
          "  --amp_configs.scale X              first scale (above 0, default 32768)\n"
          "  --amp_configs.checkpoints A,B,...  names (default none)\n"
          "  --amp_configs.shape N,N,...        sizes (default none)\n"
          "\n"
          "Examples:\n"
          "  one\n"
          "  two\n");
    }
  }
}

TEST(CommandLineTest, VersionIsThatOfFleetAndOfLibTorch) {
  Options options;
  try {
    parse_words(line_for(options), {"--wrong", "--version"});
    FAIL();
  } catch (const HelpRequested& version) {
    const std::string text = version.what();
    EXPECT_TRUE(text.starts_with("train 0.")) << text;
    EXPECT_NE(text.find(" (LibTorch " TORCH_VERSION ")\nCPU capability: "), text.npos) << text;
  }
}

struct Release {
  std::string version = "none";
};
const FieldList& fields_of(const Release*) {
  static const FieldList list{.area = "release",
                              .fields = {field<&Release::version>("version", "to make")}};
  return list;
}

TEST(CommandLineTest, AFlagOfTheProgramsOwnThatIsCalledVersionStaysItsOwn) {
  Release release;
  parse_words({.about = "", .groups = {{"Release", release}}, .examples = {}}, {"--version", "3"});
  EXPECT_EQ(release.version, "3");
}

TEST(CommandLineTest, TwoOptionsOfOneNameAreABugOfTheProgram) {
  Options one;
  Options two;
  const CommandLine line{.about = "", .groups = {{"A", one}, {"B", two}}, .examples = {}};
  EXPECT_THROW(parse_words(line, {}), std::logic_error);
}

}  // namespace
}  // namespace fleet
