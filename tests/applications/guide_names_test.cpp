// SPDX-License-Identifier: Apache-2.0
// What the guide writes, as it stands there: names of models, of checkpoints, of parameters that
// have no decay, and loaders that belong to a model.
#include <cstdlib>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "fleet/applications/bert.h"
#include "fleet/applications/data/synthetic.h"
#include "fleet/applications/resnet.h"
#include "fleet/applications/transformer.h"
#include "fleet/applications/vgg.h"
#include "fleet/comm/communicator.h"
#include "fleet/core/text/format.h"
#include "fleet/data/images/synthetic_images.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"
#include "fleet/train/distributed_optimizer.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::applications {
namespace {

using fleet::testing::error_message_of;

constexpr auto kMeta = torch::kMeta;

TEST(GuideNamesTest, ModelsAreMadeAlike) {
  EXPECT_EQ(Bert_large({.device = kMeta}).options().layers, 24);
  EXPECT_EQ(Bert_base({.device = kMeta}).options().layers, 12);
  EXPECT_EQ(ResNet50({.device = kMeta}).checkpoints().size(), 16U);
  EXPECT_EQ(Resnet50({.classes = 10, .device = kMeta})->parameters().back().size(0), 10);
  EXPECT_EQ(VGG16({.classes = 10, .device = kMeta})->parameters().back().size(0), 10);
  EXPECT_EQ(Transformer({.device = kMeta}).options().width, 512);
}

// 12 is the base model's number of layers: said for the large one, it counts all the same.
TEST(GuideNamesTest, WhatTheOptionsSayCountsForEveryNamedModel) {
  EXPECT_EQ(BertLarge({.layers = 12, .device = kMeta}).checkpoints().size(), 12U);
  EXPECT_EQ(BertLarge({.layers = 12, .device = kMeta}).options().hidden, 1024);
  EXPECT_EQ(TransformerBig({.heads = 8, .device = kMeta}).options().heads, 8);
  EXPECT_EQ(TransformerBig({.device = kMeta}).options().dropout, 0.3);
  EXPECT_EQ(TransformerBig({.dropout = 0.1, .device = kMeta}).options().dropout, 0.1);
  EXPECT_EQ(Resnet101({.width = 8, .device = kMeta}).checkpoints().size(), 33U);
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(GuideNamesTest, TheEnvironmentMakesAProgramsModelSmallAndSaysSo) {
  const Variable bert("FLEET_BERT_OPTIONS", R"({"layers": 2, "hidden": 64})");
  ::testing::internal::CaptureStdout();
  const auto model = Bert_large({.device = kMeta});
  EXPECT_TRUE(says(::testing::internal::GetCapturedStdout(),
                   "[bert] FLEET_BERT_OPTIONS: hidden 64 instead of 1024, layers 2 instead of 24"));
  EXPECT_EQ(model.options().layers, 2);
  EXPECT_EQ(model.options().heads, 16);
  const Variable resnet("FLEET_RESNET_OPTIONS", R"({"widht": 8})");
  EXPECT_TRUE(says(error_message_of([] { Resnet50({.device = kMeta}); }), "FLEET_RESNET_OPTIONS",
                   "did you mean 'width'"));
}

// Of the guide's program, with the first letters of its names.
std::vector<std::string> guide_checkpoints() {
  std::vector<std::string> names;
  for (const auto* index : {"2a", "2b", "2c", "3a", "3b", "3c", "3d", "4a", "4b", "4c", "4d", "4e",
                            "4f", "5a", "5b", "5c"}) {
    names.push_back(format("res{}.add.output.5.tmp_0", index));
  }
  return names;
}

std::vector<torch::Tensor> trained(const std::vector<std::string>& checkpoints, int64_t* segments) {
  torch::manual_seed(5);
  const auto model = Resnet50({.classes = 5, .width = 8});
  DistributedStrategy strategy{.recompute = !checkpoints.empty()};
  strategy.recompute_configs = {.checkpoints = checkpoints};
  DistributedOptimizer optimizer(
      std::make_unique<optim::Momentum>(model, optim::MomentumOptions{.lr = 0.1}), strategy,
      std::make_shared<comm::Communicator>());
  for (int64_t step = 0; step < 2; ++step) {
    const auto batch = synthetic_batch(model.options(), 4, step, 32);
    const auto report = optimizer.minimize(
        batch, [&](const Batch& micro_batch) { return model.loss(micro_batch); });
    *segments = report.memory.segments;
  }
  return model.parameters();
}

TEST(GuideNamesTest, ResnetIsCutAtTheGuidesCheckpoints) {
  int64_t none = 0, own = 0, guides = 0;
  const auto plain = trained({}, &none);
  const auto by_own = trained(Resnet50({.device = kMeta}).checkpoints(), &own);
  const auto by_guide = trained(guide_checkpoints(), &guides);
  EXPECT_EQ(own, 16);
  EXPECT_EQ(guides, own) << "the same cuts";
  for (size_t i = 0; i < plain.size(); ++i) ASSERT_TRUE(torch::equal(by_guide[i], plain[i])) << i;
}

TEST(GuideNamesTest, LongStagesAreNumberedAsInPaddle) {
  const auto model = Resnet101({.classes = 2, .width = 2});
  DistributedStrategy strategy{.recompute = true};
  strategy.recompute_configs = {.checkpoints = {"res4a.add.output.5.tmp_0",
                                                "res4b22.add.output.5.tmp_0",
                                                "res5c.add.output.5.tmp_0"}};
  DistributedOptimizer optimizer(std::make_unique<optim::Momentum>(model), strategy,
                                 std::make_shared<comm::Communicator>());
  EXPECT_NO_THROW(optimizer.minimize(
      synthetic_batch(model.options(), 2, 1, 32),
      [&](const Batch& micro_batch) { return model.loss(micro_batch); }));  // all names are met
}

// Which parameters have no decay, by the last two words of their names.
std::set<std::string> without_decay(optim::Optimizer& optimizer, const torch::nn::Module& model) {
  ParameterArena arena(optimizer.model());
  optimizer.bind(arena);
  std::set<std::string> names;
  for (size_t i = 0; i < arena.spans().size(); ++i) {
    if (optimizer.settings()[i].weight_decay == 0) names.insert(arena.spans()[i].name);
  }
  EXPECT_LT(names.size(), model.parameters().size());
  return names;
}

TEST(GuideNamesTest, BatchNormAndB0MeanNormsAndBiases) {
  const auto model = Resnet(ResnetOptions{.blocks = {1}, .classes = 5, .width = 8});
  const std::set<std::string> expected = {"bn1.weight",
                                          "bn1.bias",
                                          "layer1.0.bn1.weight",
                                          "layer1.0.bn1.bias",
                                          "layer1.0.bn2.weight",
                                          "layer1.0.bn2.bias",
                                          "layer1.0.bn3.weight",
                                          "layer1.0.bn3.bias",
                                          "layer1.0.downsample.1.weight",
                                          "layer1.0.downsample.1.bias",
                                          "fc.bias"};
  optim::Lars lars(model, {.exclude_from_weight_decay = {"batch_norm", ".b_0"},
                           .rule = {.exclude_bias_and_norm = false}});
  EXPECT_EQ(without_decay(lars, *model), expected);
  optim::Lars biases(
      model, {.exclude_from_weight_decay = {".b_0"}, .rule = {.exclude_bias_and_norm = false}});
  const auto names = without_decay(biases, *model);
  EXPECT_TRUE(names.contains("bn1.bias"));
  EXPECT_FALSE(names.contains("bn1.weight"));
}

TEST(GuideNamesTest, LayerNormMeansLayerNorms) {
  const auto model = Bert(BertOptions{
      .vocab = 8, .hidden = 8, .layers = 1, .heads = 2, .intermediate = 16, .max_positions = 8});
  optim::Lamb lamb(model, {.exclude_from_weight_decay = {"layer_norm", ".b_0"},
                           .rule = {.exclude_bias_and_norm = false}});
  const auto names = without_decay(lamb, *model);
  EXPECT_TRUE(names.contains("bert.embeddings.LayerNorm.weight"));
  EXPECT_TRUE(names.contains("cls.predictions.bias"));
  EXPECT_FALSE(names.contains("bert.embeddings.word_embeddings.weight"));
}

TEST(GuideNamesTest, ImageModelsLoadTheGuidesLists) {
  const TemporaryFolder folder;
  write_synthetic_images(folder.path() / "train",
                         {.classes = 3, .per_class = 4, .width = 40, .height = 30});
  const auto list = folder.path() / "train.txt";
  const auto model = Resnet50({.classes = 3, .width = 4});
  auto loader = model.load_imagenet_from_file(list, {.batch_size = 6, .image_size = 32});
  int64_t samples = 0;
  for (const auto& batch : loader) {
    EXPECT_TRUE(model.loss(batch).defined());
    samples += batch.size();
  }
  EXPECT_EQ(samples, 12);
  const auto narrow = VGG16({.classes = 2, .device = kMeta});
  EXPECT_TRUE(says(error_message_of([&] { narrow.load_imagenet_from_file(list); }), "label"));
  EXPECT_TRUE(
      says(error_message_of([&] { narrow.load_imagenet_from_file(list, {.num_classes = 3}); }),
           "[vgg] the data have 3 classes, the model 2"));
}

}  // namespace
}  // namespace fleet::applications
