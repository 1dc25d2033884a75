// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/strategy_overview.h"

#include <limits>

#include <gtest/gtest.h>

#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr const char* kTitle =
    "    +==============================================================================+\n"
    "    |                                                                              |\n"
    "    |                         DistributedStrategy Overview                         |\n"
    "    |                                                                              |\n";

constexpr const char* kPlain =
    "    +==============================================================================+\n"
    "    |                    Environment Flags, Communication Flags                    |\n"
    "    +------------------------------------------------------------------------------+\n"
    "    |                                  auto                  False                 |\n"
    "    |                       sync_batch_norm                  False                 |\n"
    "    |                   fuse_all_reduce_ops                   True                 |\n"
    "    |                  fuse_grad_size_in_MB                    32                  |\n"
    "    |                        fp16_allreduce                  False                 |\n"
    "    |               last_comm_group_size_MB                   1.0                  |\n"
    "    |                find_unused_parameters                  False                 |\n"
    "    +==============================================================================+";

std::string around(std::string_view blocks) { return format("{}{}{}", kTitle, blocks, kPlain); }

TEST(StrategyOverviewTest, PrintsTheGuidesRecomputeExample) {
  DistributedStrategy strategy;
  strategy.amp = true;
  strategy.amp_configs.dtype = "fp16";  // the guide's only one
  strategy.recompute = true;
  for (const auto* block : {"2a", "2b", "2c", "3a", "3b", "3c", "3d", "4a", "4b", "4c", "4d", "4e",
                            "4f", "5a", "5b", "5c"}) {
    strategy.recompute_configs.checkpoints.push_back(std::string("res") + block +
                                                     ".add.output.5.tmp_0");
  }
  EXPECT_EQ(
      strategy_overview(strategy),
      around(
          "    +==============================================================================+\n"
          "    |                           amp=True <-> amp_configs                           |\n"
          "    +------------------------------------------------------------------------------+\n"
          "    |                     init_loss_scaling                 32768.0                |\n"
          "    |                    incr_every_n_steps                   1000                 |\n"
          "    |               decr_every_n_nan_or_inf                    2                   |\n"
          "    |                            incr_ratio                   2.0                  |\n"
          "    |                            decr_ratio            0.800000011920929           |\n"
          "    |              use_dynamic_loss_scaling                   True                 |\n"
          "    |                                 dtype                   fp16                 |\n"
          "    +==============================================================================+\n"
          "    |                     recompute=True <-> recompute_configs                     |\n"
          "    +------------------------------------------------------------------------------+\n"
          "    |                           checkpoints         res2a.add.output.5.tmp_0       |\n"
          "    |                                               res2b.add.output.5.tmp_0       |\n"
          "    |                                               res2c.add.output.5.tmp_0       |\n"
          "    |                                               res3a.add.output.5.tmp_0       |\n"
          "    |                                               res3b.add.output.5.tmp_0       |\n"
          "    |                                               res3c.add.output.5.tmp_0       |\n"
          "    |                                               res3d.add.output.5.tmp_0       |\n"
          "    |                                               res4a.add.output.5.tmp_0       |\n"
          "    |                                               res4b.add.output.5.tmp_0       |\n"
          "    |                                               res4c.add.output.5.tmp_0       |\n"
          "    |                                               res4d.add.output.5.tmp_0       |\n"
          "    |                                               res4e.add.output.5.tmp_0       |\n"
          "    |                                               res4f.add.output.5.tmp_0       |\n"
          "    |                                               res5a.add.output.5.tmp_0       |\n"
          "    |                                               res5b.add.output.5.tmp_0       |\n"
          "    |                                               res5c.add.output.5.tmp_0       |\n"
          "    |                        enable_offload                  False                 "
          "|\n"));
}

TEST(StrategyOverviewTest, PrintsTheGuidesGradientMergeExample) {
  const DistributedStrategy strategy{.gradient_merge = true,
                                     .gradient_merge_configs = {.k_steps = 4, .avg = true}};
  EXPECT_EQ(
      strategy.overview(),
      around(
          "    +==============================================================================+\n"
          "    |                gradient_merge=True <-> gradient_merge_configs                |\n"
          "    +------------------------------------------------------------------------------+\n"
          "    |                               k_steps                    4                   |\n"
          "    |                                   avg                   True                 "
          "|\n"));
}

TEST(StrategyOverviewTest, ShowsOwnFieldsOnlyWhenSet) {
  DistributedStrategy strategy{.recompute = true};
  EXPECT_EQ(strategy.overview().find("memory_budget"), std::string::npos);
  strategy.recompute_configs.memory_budget = "12GiB";
  EXPECT_NE(
      strategy.overview().find(
          "    |                         memory_budget                  12GiB                 |\n"),
      std::string::npos);
}

TEST(StrategyOverviewTest, ShowsWhatIsInForce) {
  const DistributedStrategy strategy{
      .localsgd = true, .localsgd_configs = {.k_steps = 4}, .auto_ = true};
  const std::string text = strategy.overview();
  EXPECT_NE(text.find("adaptive_localsgd=True <-> adaptive_localsgd_configs"), std::string::npos);
  EXPECT_EQ(text.find(" localsgd=True"), std::string::npos);
  EXPECT_NE(
      text.find("|                          init_k_steps                    4                   |"),
      std::string::npos);
}

TEST(StrategyOverviewTest, ALossScaleIsShownOnlyWhereThereIsOne) {
  DistributedStrategy strategy{.amp = true, .amp_configs = {.init_loss_scaling = 1024}};
  EXPECT_EQ(
      strategy.overview(),
      around(
          "    +==============================================================================+\n"
          "    |                           amp=True <-> amp_configs                           |\n"
          "    +------------------------------------------------------------------------------+\n"
          "    |                                 dtype        bf16, without a loss scale      "
          "|\n"));
  strategy.amp_configs.dtype = "fp16";
  EXPECT_NE(strategy.overview().find("init_loss_scaling                  1024.0 "),
            std::string::npos)
      << strategy.overview();
}

TEST(StrategyOverviewTest, SwitchesThatAreOffHaveNoBlock) {
  EXPECT_EQ(DistributedStrategy().overview(), around(""));
}

TEST(PythonReprTest, PrintsFloatsAsPythonDoes) {
  EXPECT_EQ(python_repr(0.001f), "0.0010000000474974513");
  EXPECT_EQ(python_repr(0.0005f), "0.0005000000237487257");
  EXPECT_EQ(python_repr(0.01f), "0.009999999776482582");
  EXPECT_EQ(python_repr(32768), "32768.0");
  EXPECT_EQ(python_repr(0), "0.0");
  EXPECT_EQ(python_repr(-0.0), "-0.0");
  EXPECT_EQ(python_repr(1e-4), "0.0001");
  EXPECT_EQ(python_repr(1e-5), "1e-05");
  EXPECT_EQ(python_repr(1.5e-300), "1.5e-300");
  EXPECT_EQ(python_repr(1e15), "1000000000000000.0");
  EXPECT_EQ(python_repr(1e16), "1e+16");
  EXPECT_EQ(python_repr(123456789012345680.0), "1.2345678901234568e+17");
  EXPECT_EQ(python_repr(std::numeric_limits<double>::infinity()), "inf");
}

}  // namespace
}  // namespace fleet
