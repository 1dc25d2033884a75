// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategy_check.h"

#include <algorithm>
#include <sstream>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

namespace fleet {
namespace {

using Lines = std::vector<std::string>;

// What is wrong.
Lines problems(const DistributedStrategy& strategy,
               const CheckContext& context = {.world_size = 2}) {
  Lines lines;
  try {
    check(strategy, context);
  } catch (const Error& error) {
    std::istringstream text(error.what());
    std::string line;
    std::getline(text, line);
    EXPECT_EQ(line, "[strategy] this strategy cannot be used:");
    while (std::getline(text, line)) lines.push_back(line.substr(4));
  }
  return lines;
}

TEST(StrategyCheckTest, WhatIsHereTodayPasses) {
  EXPECT_EQ(check({}, {}), Lines{});
  const DistributedStrategy all{.sync_batch_norm = true,
                                .fuse_grad_size_in_MB = 16,
                                .fp16_allreduce = true,
                                .last_comm_group_size_MB = 0.5f,
                                .find_unused_parameters = true};
  EXPECT_EQ(check(all, {.world_size = 2, .optimizer_name = "Adam"}), Lines{});
}

TEST(StrategyCheckTest, EverythingWrongIsInOneError) {
  const DistributedStrategy strategy{.amp_configs = {.decr_ratio = 1, .dtype = "fp8"},
                                     .gradient_merge_configs = {.k_steps = 0},
                                     .lars = true,
                                     .lamb = true,
                                     .fuse_grad_size_in_MB = 0,
                                     .last_comm_group_size_MB = 0};
  EXPECT_EQ(problems(strategy, {.world_size = 2, .optimizer_name = "SGD"}),
            (Lines{
                "amp_configs.decr_ratio: 1 is out of range: it must be above 0 and below 1",
                "amp_configs.dtype: 'fp8' is not known: it must be bf16 or fp16",
                "gradient_merge_configs.k_steps: 0 is out of range: it must be at least 1",
                "fuse_grad_size_in_MB: 0 is out of range: it must be at least 1",
                "last_comm_group_size_MB: 0 is out of range: it must be above 0",
                "lars and lamb are two update rules for the same parameters; choose lars (over "
                "Momentum) or lamb (over Adam or AdamW)",
                "lars is built on Momentum, but the optimizer is SGD; use Momentum with its lr and "
                "momentum, or switch lars off",
                "lamb is built on Adam or AdamW, but the optimizer is SGD; use one of those with "
                "its lr and betas, or switch lamb off",
            }));
}

TEST(StrategyCheckTest, AmpListsMustNotOverlap) {
  const DistributedStrategy strategy{
      .amp = true,
      .amp_configs = {.custom_white_list = {"mul", "add"}, .custom_black_list = {"add"}}};
  EXPECT_EQ(problems(strategy),
            Lines{"amp_configs: 'add' is in custom_white_list and in custom_black_list, so its "
                  "precision is not decided; take it out of one"});
}

TEST(StrategyCheckTest, PureBf16NeedsBf16) {
  EXPECT_EQ(problems({.amp = true, .amp_configs = {.use_pure_bf16 = true}}), Lines{});
  EXPECT_EQ(
      problems({.amp = true, .amp_configs = {.use_pure_bf16 = true, .dtype = "fp16"}}),
      Lines{"amp_configs: use_pure_bf16 keeps bf16 parameters, but dtype is fp16; set dtype to "
            "bf16"});
}

TEST(StrategyCheckTest, RecomputeNeedsCutsOrABudgetAndNotBoth) {
  EXPECT_EQ(problems({.recompute = true, .recompute_configs = {.checkpoints = {"a"}}}), Lines{});
  EXPECT_EQ(problems({.recompute = true, .recompute_configs = {.memory_budget = "60%"}}), Lines{});
  EXPECT_EQ(problems({.recompute = true, .recompute_configs = {.memory_budget = "50% of plain"}}),
            Lines{});
  EXPECT_EQ(problems({.recompute = true, .recompute_configs = {.plan_only = true}}), Lines{});
  EXPECT_EQ(problems({.recompute = true}),
            Lines{"recompute has nowhere to cut the net: name tensors in "
                  "recompute_configs.checkpoints, or give recompute_configs.memory_budget and the "
                  "cuts are searched for"});
  EXPECT_EQ(
      problems({.recompute = true,
                .recompute_configs = {.checkpoints = {"a", "b", "a"}, .memory_budget = "much"}}),
      (Lines{"recompute_configs.checkpoints says where to cut, "
             "recompute_configs.memory_budget asks to search for it; give one of them",
             "recompute_configs.memory_budget: 'much' is no amount of memory; write a size "
             "like 8GiB, a fraction of what this rank may have like 60%, or of what plain "
             "training takes like \"50% of plain\"",
             "recompute_configs.checkpoints: 'a' is named twice"}));
  for (const auto* wrong : {"0", "-5%", "101%", "%", "12", "nan%"}) {
    EXPECT_EQ(problems({.recompute = true, .recompute_configs = {.memory_budget = wrong}}).size(),
              1U)
        << wrong;
  }
  EXPECT_EQ(problems({.recompute = true, .recompute_configs = {.memory_budget = "60"}}),
            Lines{"recompute_configs.memory_budget: '60' is no amount of memory; write 60% of what "
                  "this rank may have, \"60% of plain\" training, or a size with its unit like "
                  "60MiB"});
}

TEST(StrategyCheckTest, OffloadNeedsRecompute) {
  EXPECT_EQ(problems({.recompute_configs = {.enable_offload = true}}),
            Lines{"recompute_configs.enable_offload offloads checkpoints, and without recompute "
                  "there are none; switch recompute on too"});
}

TEST(StrategyCheckTest, MergingIsSaidInOneWay) {
  EXPECT_EQ(problems({.gradient_merge = true,
                      .gradient_merge_configs = {.k_steps = 4, .micro_batch_size = 8}}),
            Lines{"gradient_merge_configs: k_steps = 4 says how many micro-batches a batch has, "
                  "micro_batch_size = 8 how large they are; give one of them"});
}

TEST(StrategyCheckTest, InnerOptimizerOfLarsAndLamb) {
  EXPECT_EQ(problems({.lars = true}, {.optimizer_name = "Momentum"}), Lines{});
  EXPECT_EQ(problems({.lamb = true}, {.optimizer_name = "Adam"}), Lines{});
  EXPECT_EQ(problems({.lamb = true}, {}), Lines{}) << "not known yet is not wrong";
}

TEST(StrategyCheckTest, LambOverAdamWHasOneDecayAndSaysWhich) {
  const auto adamw = [](double weight_decay) {
    return CheckContext{.optimizer_name = "AdamW", .weight_decay = weight_decay};
  };
  EXPECT_EQ(check({.lamb = true}, adamw(0.01)),
            Lines{"lamb takes over AdamW's weight_decay of 0.01"});
  EXPECT_EQ(check({.lamb = true}, adamw(0.1)),
            Lines{"lamb takes over AdamW's weight_decay of 0.1"});
  EXPECT_EQ(check({.lamb = true}, adamw(0)), Lines{"lamb takes over AdamW's weight_decay of 0"});
  const DistributedStrategy set{.lamb = true, .lamb_configs = {.lamb_weight_decay = 0.25f}};
  EXPECT_EQ(check(set, adamw(0.25)), Lines{"lamb takes over AdamW's weight_decay of 0.25"});
  EXPECT_EQ(
      check(set, adamw(0.01)),
      Lines{"lamb decays by lamb_weight_decay = 0.25; AdamW's default of 0.01 is not in force"});
  EXPECT_EQ(
      problems(set, adamw(0.1)),
      Lines{"AdamW's weight_decay is 0.1 and lamb_configs.lamb_weight_decay is 0.25; LAMB has "
            "one decay: set one of them"});
  EXPECT_EQ(problems({.lars = true}, adamw(0.1)).size(), 2u)
      << "not Momentum, and a decay of its own";
}

TEST(StrategyCheckTest, StateThatOnlyTheOptimizerCanReadStaysWithItsRank) {
  const CheckContext torch{
      .world_size = 2, .optimizer_name = "torch::optim::RMSprop", .has_opaque_state = true};
  EXPECT_EQ(problems({.localsgd = true}, torch), Lines{});
  EXPECT_EQ(problems({.localsgd = true, .localsgd_configs = {.optimizer_state = "average"}}, torch),
            Lines{"localsgd_configs: optimizer_state = average needs the optimizer's state, which "
                  "torch::optim::RMSprop does not expose; keep it local, or use an optimizer of "
                  "Fleet's"});
  auto elastic = torch;
  elastic.is_elastic = true;
  EXPECT_EQ(problems({.localsgd = true}, elastic),
            Lines{"fleetrun --elastic gives a restarted rank the optimizer's state, which "
                  "torch::optim::RMSprop does not expose; use an optimizer of Fleet's, or leave "
                  "--elastic out and restart from snapshots"});
}

TEST(StrategyCheckTest, LocalSgdTakesAnyOptimizerAndMostStrategies) {
  for (const auto* optimizer : {"SGD", "Momentum", "Adam"}) {
    EXPECT_EQ(problems({.amp = true,
                        .recompute = true,
                        .recompute_configs = {.checkpoints = {"a"}},
                        .localsgd = true,
                        .gradient_merge = true,
                        .gradient_merge_configs = {.k_steps = 2}},
                       {.world_size = 2, .optimizer_name = optimizer}),
              Lines{});
  }
  EXPECT_EQ(problems({.localsgd = true, .lars = true}, {.world_size = 2}), Lines{});
}

TEST(StrategyCheckTest, LocalSgdRefusesWhatNeedsEveryStep) {
  EXPECT_EQ(
      problems({.localsgd = true, .sync_batch_norm = true, .fp16_allreduce = true}),
      (Lines{"fp16_allreduce is about gradients, and localsgd with begin_step = 1 never sends "
             "any (parameters, which it averages, would not survive fp16); switch "
             "fp16_allreduce off, or begin later",
             "sync_batch_norm mixes the statistics of all ranks in every forward, but with "
             "localsgd ranks hold different weights and must not wait for each other; switch "
             "sync_batch_norm off: statistics are averaged with the parameters"}));
  EXPECT_EQ(
      problems({.localsgd = true, .localsgd_configs = {.begin_step = 100}, .fp16_allreduce = true}),
      Lines{});
}

TEST(StrategyCheckTest, WhatAnAverageDoesIsSaidWithoutContradiction) {
  EXPECT_EQ(problems({.localsgd = true, .localsgd_configs = {.outer_momentum = 0.9}}),
            Lines{"localsgd_configs: outer_lr and outer_momentum are for outer = slow_momentum or "
                  "nesterov, and outer is average, which has neither; choose one, or leave them "
                  "out"});
  EXPECT_EQ(
      problems({.adaptive_localsgd = true,
                .adaptive_localsgd_configs = {.init_k_steps = 32,
                                              .optimizer_state = "average",
                                              .delayed = true}}),
      (Lines{"adaptive_localsgd_configs: with delayed, an average arrives one interval late, and "
             "optimizer_state = average would undo what the state has learned since; keep it local",
             "adaptive_localsgd_configs: the first interval, init_k_steps = 32, is longer than "
             "max_k_steps = 16 allows; raise max_k_steps"}));
  const DistributedStrategy reset{.localsgd = true,
                                  .localsgd_configs = {.optimizer_state = "reset"}};
  EXPECT_EQ(problems(reset, {.world_size = 2, .optimizer_name = "Momentum"}), Lines{});
  EXPECT_EQ(problems(reset, {.world_size = 2, .optimizer_name = "AdamW"}), Lines{});
  EXPECT_EQ(problems({.localsgd = true, .localsgd_configs = {.outer = "adam"}}),
            Lines{"localsgd_configs.outer: 'adam' is not known: it must be average or "
                  "slow_momentum or nesterov"});
}

TEST(StrategyCheckTest, LocalSgdThatSavesNothingIsARemark) {
  EXPECT_EQ(check({.localsgd = true}, {.world_size = 2}),
            Lines{"localsgd with k_steps = 1 averages after every update: the traffic of plain "
                  "training, which would hide it behind backward"});
  EXPECT_EQ(
      check({.localsgd = true, .localsgd_configs = {.k_steps = 4, .optimizer_state = "average"}},
            {.world_size = 1, .optimizer_name = "SGD"}),
      (Lines{"localsgd_configs.optimizer_state has no effect: SGD has no state",
             "localsgd has nothing to average on one rank: this is plain training"}));
}

TEST(StrategyCheckTest, TwoKindsOfLocalSgdContradict) {
  const Lines both = {
      "localsgd averages at a fixed interval, adaptive_localsgd at one that it chooses; switch one "
      "of them off"};
  EXPECT_EQ(problems({.localsgd = true, .adaptive_localsgd = true}), both);
  EXPECT_EQ(problems({.localsgd = true, .auto_ = true, .adaptive_localsgd = true}), both);
}

TEST(StrategyCheckTest, AutoNeedsLocalSgd) {
  EXPECT_EQ(problems({.auto_ = true}),
            Lines{"auto makes localsgd adaptive, and localsgd is off; switch localsgd on, or auto "
                  "off (Paddle's automatic parallelism, of the same name, is not in Fleet)"});
  EXPECT_EQ(
      problems({.auto_ = true, .adaptive_localsgd = true}),
      Lines{"auto makes localsgd adaptive, and adaptive_localsgd is so already; leave auto off"});
  EXPECT_EQ(problems({.localsgd = true, .auto_ = true}), Lines{});
}

TEST(StrategyCheckTest, ConfigsOfASwitchThatIsOffAreARemark) {
  EXPECT_EQ(check({.gradient_merge_configs = {.k_steps = 4}}, {}),
            Lines{"gradient_merge_configs.k_steps = 4 has no effect while gradient_merge is off "
                  "(on: gradient_merge = true, or --gradient_merge)"});
}

TEST(StrategyCheckTest, WhatOneRankCannotUseIsARemark) {
  EXPECT_EQ(check({.sync_batch_norm = true, .fp16_allreduce = true}, {.world_size = 1}),
            (Lines{"fp16_allreduce has nothing to send on one rank",
                   "sync_batch_norm on one rank is plain batch norm"}));
}

TEST(StrategyCheckTest, BucketSizesWithoutBucketsAreARemark) {
  EXPECT_EQ(check({.fuse_all_reduce_ops = false, .fuse_grad_size_in_MB = 8}, {.world_size = 2}),
            Lines{"fuse_grad_size_in_MB has no effect while fuse_all_reduce_ops is off"});
}

}  // namespace
}  // namespace fleet
