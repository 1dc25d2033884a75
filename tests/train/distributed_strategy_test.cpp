// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/distributed_strategy.h"

#include <bit>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "fleet/core/error.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using Random = std::mt19937_64;
using testing::error_message_of;

std::string random_text(Random& random) {
  static const std::vector<std::string> kPieces = {
      "a", "res2a.add.output.5.tmp_0", "\"", "\\", "\n", "\u4e2d", ",", " "};
  std::string text = "x";
  for (size_t n = random() % 4; n > 0; --n) text += kPieces[random() % kPieces.size()];
  return text;
}

// Any value that the field accepts, floats from all their bit patterns.
struct Draw {
  const Field& field;
  Random& random;

  template <typename Number, typename Bits>
  FieldValue from_bits() const {
    for (;;) {
      const auto number = std::bit_cast<Number>(static_cast<Bits>(random()));
      if (problem_with(field, number).empty()) return number;
    }
  }
  FieldValue operator()(bool) const { return random() % 2 == 0; }
  FieldValue operator()(int) const { return static_cast<int>(1 + random() % 2147483647); }
  FieldValue operator()(int64_t) const { return static_cast<int64_t>(1 + random() % (1ULL << 62)); }
  FieldValue operator()(float) const { return from_bits<float, uint32_t>(); }
  FieldValue operator()(double) const { return from_bits<double, uint64_t>(); }
  FieldValue operator()(const std::string&) const {
    if (field.words.empty()) return random_text(random);
    return std::string(field.words[random() % field.words.size()]);
  }
  FieldValue operator()(const std::vector<std::string>&) const {
    std::vector<std::string> list(random() % 4);
    for (auto& text : list) text = random_text(random);
    return list;
  }
  FieldValue operator()(const std::vector<int64_t>&) const {
    std::vector<int64_t> list(random() % 4);
    for (auto& number : list) number = static_cast<int64_t>(1 + random() % 1000);
    return list;
  }
};

FieldValue random_value(const Field& field, const FieldValue& like, Random& random) {
  return std::visit(Draw{field, random}, like);
}

DistributedStrategy random_strategy(Random& random) {
  DistributedStrategy strategy;
  for (const Leaf& leaf : leaves(OptionsRef(strategy))) {
    if (random() % 2 == 0) continue;
    leaf.field->set(leaf.owner, random_value(*leaf.field, leaf.field->get(leaf.owner), random));
  }
  return strategy;
}

TEST(DistributedStrategyTest, DefaultsAreTheGuides) {
  const DistributedStrategy s;
  EXPECT_FALSE(s.amp || s.recompute || s.localsgd || s.auto_ || s.gradient_merge || s.lars ||
               s.lamb || s.adaptive_localsgd || s.sync_batch_norm || s.fp16_allreduce ||
               s.find_unused_parameters);
  EXPECT_TRUE(s.fuse_all_reduce_ops);
  EXPECT_EQ(s.fuse_grad_size_in_MB, 32);
  EXPECT_EQ(s.last_comm_group_size_MB, 1);
  EXPECT_EQ(s.amp_configs.init_loss_scaling, 32768);
  EXPECT_EQ(s.amp_configs.decr_ratio, 0.8f);
  EXPECT_EQ(s.lars_configs.lars_coeff, 0.001f);
  EXPECT_EQ(s.lars_configs.lars_weight_decay, 0.0005f);
  EXPECT_EQ(s.lamb_configs.lamb_weight_decay, 0.01f);
  EXPECT_EQ(s.gradient_merge_configs, (GradientMergeConfigs{.k_steps = 1, .avg = true}));
}

TEST(DistributedStrategyTest, RandomStrategiesSurviveJson) {
  Random random(20210104);
  for (int i = 0; i < 500; ++i) {
    const DistributedStrategy strategy = random_strategy(random);
    ASSERT_EQ(DistributedStrategy::from_json(strategy.to_json()), strategy) << strategy.to_json();
  }
}

TEST(DistributedStrategyTest, EveryFieldIsInTheListAndCountsForEquality) {
  Random random(7);
  const DistributedStrategy plain;
  size_t fields = 0;
  for (const auto& view : leaves(OptionsView(plain))) {
    DistributedStrategy changed;
    const Leaf leaf = leaves(OptionsRef(changed))[fields++];
    while (leaf.field->get(leaf.owner) == view.value()) {
      leaf.field->set(leaf.owner, random_value(*leaf.field, view.value(), random));
    }
    EXPECT_NE(changed, plain) << view.path;
    EXPECT_NE(changed.to_json().find(std::string(view.field->name)), std::string::npos);
  }
  EXPECT_EQ(fields, 64u) << "a field was added or taken away: change this number on purpose";
}

TEST(DistributedStrategyTest, SaveAndLoadGiveAnEqualStrategy) {
  const auto file =
      (std::filesystem::path(::testing::TempDir()) / "distributed_strategy_test.json").string();
  const DistributedStrategy strategy{
      .recompute = true,
      .recompute_configs = {.checkpoints = {"a", "b"}, .enable_offload = true},
      .fp16_allreduce = true};
  strategy.save(file);
  EXPECT_EQ(DistributedStrategy::load(file), strategy);
  std::remove(file.c_str());
}

// It was written to "FILE.part" first, whatever that was.
TEST(DistributedStrategyTest, SavingTouchesNoOtherFile) {
  const TemporaryFolder folder;
  const auto file = (folder.path() / "strategy.json").string();
  folder.write("strategy.json.part", "mine");
  const DistributedStrategy strategy{.amp = true};
  strategy.save(file);
  EXPECT_EQ(DistributedStrategy::load(file), strategy);
  std::string text;
  std::ifstream(folder.path() / "strategy.json.part") >> text;
  EXPECT_EQ(text, "mine");
  EXPECT_TRUE(says(
      error_message_of([&] { strategy.save((folder.path() / "no" / "strategy.json").string()); }),
      "[strategy] cannot write ", "No such file or directory"));
}

TEST(DistributedStrategyTest, FileFormIsNestedAndShort) {
  const DistributedStrategy strategy{
      .localsgd = true, .localsgd_configs = {.k_steps = 8}, .auto_ = true};
  EXPECT_EQ(strategy.to_json(),
            "{\n"
            "  \"localsgd\": true,\n"
            "  \"localsgd_configs\": {\n"
            "    \"k_steps\": 8\n"
            "  },\n"
            "  \"auto\": true\n"
            "}\n");
}

TEST(DistributedStrategyTest, AssigningConfigsReplacesTheirLists) {
  DistributedStrategy strategy;
  strategy.recompute_configs = {.checkpoints = {"a"}};
  strategy.recompute_configs = {.checkpoints = {"b"}};
  EXPECT_EQ(strategy.recompute_configs.checkpoints, std::vector<std::string>{"b"});
}

TEST(DistributedStrategyTest, FieldsThatOnlyPaddleHasAreExplained) {
  try {
    DistributedStrategy::from_json(
        R"({"dgc": true, "nccl_comm_num": 2, "amp_configs": {"use_pure_fp16": true}, "ampp": 1})");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "[strategy] the text cannot be used as it is:\n"
        "  - dgc: Paddle's gradient compression, which Fleet does not have; fp16_allreduce halves "
        "the traffic, localsgd divides it\n"
        "  - nccl_comm_num: Paddle's, for NCCL's streams and rings; Fleet launches in one order on "
        "every rank and needs no such setting\n"
        "  - amp_configs.use_pure_fp16: Paddle's; Fleet keeps pure training to bf16: "
        "use_pure_bf16\n"
        "  - unknown key 'ampp' (did you mean 'amp'?)");
  }
}

TEST(DistributedStrategyTest, NoFieldIsBothHereAndAbsent) {
  const DistributedStrategy strategy;
  const auto expect_apart = [](const FieldList& list) {
    for (const auto& absent : list.absent) {
      for (const auto& field : list.fields) EXPECT_NE(absent.name, field.name);
    }
  };
  expect_apart(fields_of(&strategy));
  for (const auto& field : fields_of(&strategy).fields) {
    if (field.nested()) expect_apart(*field.view(&strategy).list);
  }
}

TEST(DistributedStrategyTest, EveryStrategyWithConfigsHasARow) {
  std::set<std::string_view> switches, rows;
  for (const Field& field : fields_of(static_cast<const DistributedStrategy*>(nullptr)).fields) {
    if (configs_of(field.name)) switches.insert(field.name);
  }
  for (const auto& entry : strategies()) {
    EXPECT_TRUE(rows.insert(entry.name).second) << entry.name << " has two rows";
  }
  EXPECT_EQ(rows, switches);
}

TEST(DistributedStrategyTest, AutoWithLocalSgdIsAdaptive) {
  const DistributedStrategy asked{.localsgd = true,
                                  .localsgd_configs = {.k_steps = 4,
                                                       .begin_step = 30,
                                                       .outer = "nesterov",
                                                       .outer_lr = 0.7,
                                                       .outer_momentum = 0.9,
                                                       .optimizer_state = "average",
                                                       .delayed = true},
                                  .auto_ = true};
  const auto [strategy, notes] = asked.resolved();
  EXPECT_EQ(strategy,
            (DistributedStrategy{.adaptive_localsgd = true,
                                 .adaptive_localsgd_configs = {.init_k_steps = 4,
                                                               .begin_step = 30,
                                                               .outer = "nesterov",
                                                               .outer_lr = 0.7,
                                                               .outer_momentum = 0.9,
                                                               .optimizer_state = "average",
                                                               .delayed = true}}));
  EXPECT_EQ(notes, std::vector<std::string>{"auto with localsgd is adaptive_localsgd with "
                                            "init_k_steps = 4 and begin_step = 30"});
  EXPECT_TRUE(strategy.resolved().notes.empty());
}

}  // namespace
}  // namespace fleet
