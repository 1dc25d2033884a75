// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/program/train_config.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "fleet/core/error.h"
#include "fleet/train/command_line_strategy.h"
#include "fleet/train/program/run_options.h"
#include "fleet/train/strategy_check.h"

namespace fleet {
namespace {

struct Own {
  std::string data_dir = "data";
  int workers = 2;
};
const FieldList& fields_of(const Own*) {
  static const FieldList list{.area = "own",
                              .fields = {
                                  field<&Own::data_dir>("data_dir", "where the data lie"),
                                  field<&Own::workers>("workers", "reading threads").at_least(1),
                              }};
  return list;
}

using Words = std::vector<const char*>;

Words argv_of(const Words& words) {
  Words argv = {"build/bin/train"};
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

TrainConfig parsed(const Words& words, const TrainConfig& defaults = {}) {
  const Words argv = argv_of(words);
  return parse_train_configs(static_cast<int>(argv.size()), argv.data(), defaults);
}

class StrategyFile {
 public:
  explicit StrategyFile(const std::string& text)
      : path((std::filesystem::path(::testing::TempDir()) / "train_config_test.json").string()) {
    std::ofstream(path) << text;
  }
  ~StrategyFile() { std::remove(path.c_str()); }

  const std::string path;
};

TEST(TrainConfigTest, SnapshotsAreFlagsOfEveryProgram) {
  EXPECT_EQ(parsed({}).snapshots, SnapshotOptions());
  const auto config =
      parsed({"--snapshot_dir", "runs/first", "--save-every", "500", "--keep", "0"}).snapshots;
  EXPECT_EQ(config.snapshot_dir, "runs/first");
  EXPECT_EQ(config.save_every, 500);
  EXPECT_EQ(config.keep, 0);
  EXPECT_THROW(parsed({"--keep", "-1"}), UsageError);
}

TEST(TrainConfigTest, DefaultsAreTheGuides) {
  const TrainConfig config = parsed({});
  EXPECT_EQ(config, TrainConfig());
  EXPECT_EQ(config.lr, 1e-4);
  EXPECT_EQ(config.momentum, 0.9);
  EXPECT_EQ(config.beta1, 0.9);
  EXPECT_EQ(config.beta2, 0.997);
  EXPECT_EQ(config.epsilon, 1e-9);
  EXPECT_EQ(config.batch_size, 32);
}

TEST(TrainConfigTest, AProgramBringsItsOwnDefaults) {
  const TrainConfig config =
      parsed({"--epochs", "3"}, {.lr = 0.05, .batch_size = 128, .strategy = {.amp = true}});
  EXPECT_EQ(config,
            (TrainConfig{.lr = 0.05, .batch_size = 128, .epochs = 3, .strategy = {.amp = true}}));
}

TEST(TrainConfigTest, StrategyFlagsReachEveryConfig) {
  const TrainConfig config =
      parsed({"--amp", "--amp_configs.init_loss_scaling", "1024", "--recompute_configs.checkpoints",
              "a,b", "--auto", "--fuse-grad-size-in-MB=8", "--no_fuse_all_reduce_ops"});
  EXPECT_EQ(config.strategy, (DistributedStrategy{.amp = true,
                                                  .amp_configs = {.init_loss_scaling = 1024},
                                                  .recompute_configs = {.checkpoints = {"a", "b"}},
                                                  .auto_ = true,
                                                  .fuse_all_reduce_ops = false,
                                                  .fuse_grad_size_in_MB = 8}));
}

// One flag for recompute and its budget; named checkpoints beside it are the conflict that `check`
// reports.
TEST(TrainConfigTest, MemoryBudgetSwitchesRecomputeOn) {
  for (const std::string budget : {"12GiB", "60%", "50% of plain"}) {
    const auto strategy = parsed({"--memory_budget", budget.c_str()}).strategy;
    EXPECT_EQ(strategy, (DistributedStrategy{.recompute = true,
                                             .recompute_configs = {.memory_budget = budget}}));
    check(strategy, {});
  }
  const auto both = parsed({"--memory_budget=1GiB", "--recompute_configs.checkpoints=a"}).strategy;
  try {
    check(both, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("give one of them"), std::string::npos)
        << error.what();
  }
  const StrategyFile file(R"({"recompute_configs": {"memory_budget": "8GiB"}})");
  EXPECT_EQ(parsed({"--strategy", file.path.c_str(), "--memory_budget", "1GiB"})
                .strategy.recompute_configs.memory_budget,
            "1GiB");
}

TEST(TrainConfigTest, PlanOnlyNeedsNoBudget) {
  const auto strategy = parsed({"--plan_only"}).strategy;
  EXPECT_TRUE(strategy.recompute && strategy.recompute_configs.plan_only);
  check(strategy, {});
}

TEST(TrainConfigTest, FlagsWinOverTheFileWhateverTheirOrder) {
  const StrategyFile file(R"({"gradient_merge": true, "gradient_merge_configs": {"k_steps": 4},
                              "recompute_configs": {"checkpoints": ["x", "y"]}})");
  const DistributedStrategy expected_strategy{.recompute_configs = {.checkpoints = {"z"}},
                                              .gradient_merge = true,
                                              .gradient_merge_configs = {.k_steps = 8}};
  const char* flag = "--gradient_merge_configs.k_steps=8";
  const char* list = "--recompute_configs.checkpoints=z";
  EXPECT_EQ(parsed({"--strategy", file.path.c_str(), flag, list}).strategy, expected_strategy);
  EXPECT_EQ(parsed({flag, list, "--strategy", file.path.c_str()}).strategy, expected_strategy);
  EXPECT_FALSE(
      parsed({"--no_gradient_merge", "--strategy", file.path.c_str()}).strategy.gradient_merge);
}

TEST(TrainConfigTest, TheFileReplacesTheProgramsStrategy) {
  const StrategyFile file("{}");
  EXPECT_EQ(parsed({"--strategy", file.path.c_str()}, {.strategy = {.amp = true}}).strategy,
            DistributedStrategy());
}

// A program may assign configs as a whole, as the guide's do.
TEST(TrainConfigTest, WhatAProgramReplacesIsKnownByName) {
  auto strategy =
      parsed({"--lars_configs.lars_coeff", "0.5", "--gradient_merge", "--memory_budget=60%"})
          .strategy;
  EXPECT_EQ(overridden_by_program(strategy), std::vector<std::string>());
  strategy.lars = true;  // nobody asked for anything else
  strategy.lars_configs = {.lars_weight_decay = 0.25};
  strategy.recompute_configs = {.checkpoints = {"layer1"}};
  EXPECT_EQ(overridden_by_program(strategy),
            (std::vector<std::string>{
                "recompute_configs.memory_budget = 60% of the command line is not in force: the "
                "program sets nothing",
                "lars_configs.lars_coeff = 0.5 of the command line is not in force: the program "
                "sets 0.001"}));
  parsed({});
  EXPECT_EQ(overridden_by_program(strategy), std::vector<std::string>())
      << "of the last command line alone";
}

TEST(TrainConfigTest, OwnOptionsAreAFurtherGroup) {
  const Words argv = argv_of({"--data_dir", "elsewhere", "--lr", "1", "--workers=4"});
  Own own;
  const auto config =
      parse_train_configs(static_cast<int>(argv.size()), argv.data(), own, {.batch_size = 8});
  EXPECT_EQ(own.data_dir, "elsewhere");
  EXPECT_EQ(own.workers, 4);
  EXPECT_EQ(config, (TrainConfig{.lr = 1, .batch_size = 8}));
}

TEST(TrainConfigTest, SeveralGroupsOfOwnOptions) {
  const Words argv = argv_of({"--max_updates=3", "--workers=4", "--lr=1"});
  Own own;
  RunOptions run;
  const auto config = parse_train_configs(static_cast<int>(argv.size()), argv.data(),
                                          {{"Reading", own}, {"Run", run}});
  EXPECT_EQ(own.workers, 4);
  EXPECT_EQ(run.max_updates, 3);
  EXPECT_EQ(config.lr, 1);
}

TEST(TrainConfigTest, FlagsOfTheGuideThatHaveNoMeaningHereSayWhy) {
  try {
    parsed({"--download_config=resnet.yaml"});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--download_config: Paddle's"), std::string::npos)
        << error.what();
  }
}

std::string help_of(const ProgramHelp& program) {
  const Words argv = argv_of({"--help"});
  try {
    parse_train_configs(static_cast<int>(argv.size()), argv.data(), {}, program);
  } catch (const HelpRequested& help) {
    return help.what();
  }
  return "";
}

TEST(TrainConfigTest, OnlyFlagsThatAProgramReadsAreInItsHelp) {
  const auto flags_in = [](const std::string& help) {
    std::set<std::string> found;
    for (const std::string name :
         {"lr", "momentum", "beta1", "beta2", "epsilon", "batch_size", "epochs", "seed",
          "snapshot_dir", "save_every", "strategy", "plan_only", "amp", "lars"}) {
      if (help.find("\n  --" + name + " ") != help.npos) found.insert(name);
    }
    return found;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(flags_in(help_of({})), (Names{"lr", "batch_size", "epochs", "seed", "snapshot_dir",
                                          "save_every", "strategy", "plan_only", "amp", "lars"}));
  EXPECT_EQ(flags_in(help_of({.reads = {"lr", "beta1"}})),
            (Names{"lr", "beta1", "strategy", "plan_only", "amp", "lars"}));
  EXPECT_EQ(help_of({.reads = {"lr"}}).find("Snapshots ("), std::string::npos);
}

TEST(TrainConfigTest, AFlagThatAProgramDoesNotReadIsRefusedWithAReason) {
  const auto parse = [](const Words& words, const ProgramHelp& program) {
    const Words argv = argv_of(words);
    return parse_train_configs(static_cast<int>(argv.size()), argv.data(), {}, program);
  };
  try {
    parse({"--momentum", "0.8", "--snapshot_dir=a", "--epochs", "2"}, {.reads = {"lr"}});
    FAIL();
  } catch (const UsageError& error) {
    const std::string why = "this program does not read it (ProgramHelp::reads has what it does)\n";
    EXPECT_NE(std::string(error.what())
                  .find("\n  - --momentum: " + why + "  - --snapshot_dir: " + why +
                        "  - --epochs: " + why + "  fix: "),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(parse({"--momentum", "0.8"}, {.reads = {"momentum"}}).momentum, 0.8);
}

TEST(TrainConfigTest, NamesThatAProgramCannotReadAreRefused) {
  const Words argv = argv_of({});
  try {
    parse_train_configs(1, argv.data(), {}, {.reads = {"lr", "momentun", "snapshot"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "[config] ProgramHelp::reads names what does not exist:\n"
                 "  - 'momentun' is no field of TrainConfig (did you mean 'momentum'?)\n"
                 "  - 'snapshot' is no field of TrainConfig (did you mean 'snapshots'?)\n"
                 "  fix: give names of flags, or \"snapshots\"");
  }
}

TEST(TrainConfigTest, MistakesOfTheLineComeInOneUsageError) {
  try {
    parsed({"--lr", "fast", "--batch_size=0", "--amp_config.dtype", "bf16", "--nccl_comm_num=2"});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(
        error.what(),
        "[command line] train cannot start:\n"
        "  - --lr: expected a number, got 'fast'\n"
        "  - --batch_size: 0 is out of range: it must be at least 1\n"
        "  - unknown flag --amp_config.dtype (did you mean '--amp_configs.dtype' or '--amp'?)\n"
        "  - --nccl_comm_num: Paddle's, for NCCL's streams and rings; Fleet launches in "
        "one order on every rank and needs no such setting\n"
        "  fix: train --help lists every flag");
  }
}

TEST(TrainConfigTest, MistakesOfTheFileNameTheFile) {
  const StrategyFile file(R"({"ampp": true})");
  try {
    parsed({"--strategy", file.path.c_str()});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("[strategy] " + file.path)) << error.what();
  }
}

TEST(TrainConfigTest, HelpShowsTheProgramsDefaultsAndEndsWithCommands) {
  const Words argv = argv_of({"--help"});
  Own own;
  try {
    parse_train_configs(static_cast<int>(argv.size()), argv.data(), own, {.lr = 0.05});
    FAIL();
  } catch (const HelpRequested& help) {
    const std::string text = help.what();
    EXPECT_NE(text.find("This program:\n  --data_dir TEXT  where the data lie (default data)\n"),
              std::string::npos);
    EXPECT_NE(text.find("learning rate (at least 0, default 0.05)\n"), std::string::npos);
    EXPECT_NE(text.find("size of a bucket (in MB, at least 1, default 32)\n"), std::string::npos);
    EXPECT_TRUE(
        text.ends_with("Examples:\n"
                       "  build/bin/train --batch_size 64 --epochs 2\n"
                       "  fleetrun --nproc_per_node 2 build/bin/train --fp16_allreduce\n"))
        << text;
  }
}

}  // namespace
}  // namespace fleet
