// SPDX-License-Identifier: Apache-2.0
// The full-size models: names and shapes of the libraries', checkpoints, and the meta device, on
// which they are made and trained without memory.
#include <unistd.h>

#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "fleet/applications/data/synthetic.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::applications {
namespace {

std::multiset<std::string> described(const torch::nn::Module& model) {
  std::multiset<std::string> out;
  const auto add = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      auto line = item.key();
      for (const auto size : item.value().sizes()) line += " " + std::to_string(size);
      out.insert(line);
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  return out;
}

std::multiset<std::string> preset(const std::string& name) {
  std::ifstream file(FLEET_GOLDEN_DIR "/presets.json");
  const auto lines = nlohmann::json::parse(file)[name].get<std::vector<std::string>>();
  return {lines.begin(), lines.end()};
}

int64_t parameters_of(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

int64_t resident_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

template <typename Model>
void expect_preset(const Model& model, const std::string& name, int64_t parameters,
                   size_t checkpoints) {
  SCOPED_TRACE(name);
  EXPECT_EQ(described(*model), preset(name));
  EXPECT_EQ(parameters_of(*model), parameters);
  const auto names = model.checkpoints();
  EXPECT_EQ(names.size(), checkpoints);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(PresetsTest, HaveTheParametersOfTorchvision) {
  expect_preset(Resnet18({.device = torch::kMeta}), "resnet18", 11'689'512, 8);
  expect_preset(Resnet50({.device = torch::kMeta}), "resnet50", 25'557'032, 16);
  expect_preset(Resnet101({.device = torch::kMeta}), "resnet101", 44'549'160, 33);
  expect_preset(Resnet152({.device = torch::kMeta}), "resnet152", 60'192'808, 50);
  expect_preset(VGG16({.device = torch::kMeta}), "vgg16", 138'357'544, 5);
  expect_preset(VGG16({.batch_norm = true, .device = torch::kMeta}), "vgg16_bn", 138'365'992, 5);
}

TEST(PresetsTest, HaveTheParametersOfTransformers) {
  expect_preset(BertBase({.device = torch::kMeta}), "bert_base", 110'106'428, 12);
  expect_preset(BertLarge({.device = torch::kMeta}), "bert_large", 336'226'108, 24);
}

// torch.nn.Transformer has neither embeddings nor scores.
TEST(PresetsTest, HaveTheLayersOfTorchTransformer) {
  for (const bool big : {false, true}) {
    auto options = big ? transformer_big_options() : TransformerOptions{};
    options.final_norm = true;
    options.device = torch::kMeta;
    const Transformer model(options);
    auto lines = described(*model);
    EXPECT_EQ(lines.erase(big ? "embedding.weight 37000 1024" : "embedding.weight 37000 512"), 1u);
    EXPECT_EQ(lines, preset(big ? "transformer_big" : "transformer_base"));
    EXPECT_EQ(model.checkpoints().size(), 12u);
    EXPECT_EQ(model.checkpoints().front(), "encoder.layers.0");
    EXPECT_EQ(model.checkpoints().back(), "decoder.layers.5");
  }
}

TEST(PresetsTest, NameBlocksInOrder) {
  const auto bert = BertBase({.device = torch::kMeta}).checkpoints();
  EXPECT_EQ(bert.front(), "encoder.layer.0");
  EXPECT_EQ(bert.back(), "encoder.layer.11");
  const auto resnet = Resnet50({.device = torch::kMeta}).checkpoints();
  EXPECT_EQ(resnet[3], "layer2.0");
  EXPECT_EQ(resnet.back(), "layer4.2");
  EXPECT_EQ(VGG16({.device = torch::kMeta}).checkpoints(),
            (std::vector<std::string>{"features.4", "features.9", "features.16", "features.23",
                                      "features.30"}));
}

// Forward and backward of a real size, of which only the shapes are computed.
template <typename Model, typename... Size>
void expect_meta_step(const Model& model, int64_t batch_size, Size... size) {
  const auto batch = synthetic_batch(model.options(), batch_size, 1, size...);
  const torch::Tensor loss = model.loss(batch);
  EXPECT_TRUE(loss.is_meta());
  loss.backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().is_meta()) << item.key();
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    ASSERT_EQ(item.value().grad().sizes(), item.value().sizes()) << item.key();
  }
  EXPECT_TRUE(model.metrics(batch.slice(0, batch_size / 2)).loss.is_meta());
}

TEST(PresetsTest, TakeAStepOnTheMetaDeviceWithoutMemory) {
  const auto before = resident_bytes();
  expect_meta_step(BertLarge({.device = torch::kMeta}), 530, 512);
  expect_meta_step(TransformerBig({.device = torch::kMeta}), 64, 100);
  expect_meta_step(Resnet152({.device = torch::kMeta}), 256);
  expect_meta_step(VGG16({.batch_norm = true, .device = torch::kMeta}), 256);
  EXPECT_LT(resident_bytes() - before, 200 << 20);  // the smallest of them has 240 MB of parameters
}

// The start that the libraries give their models.
TEST(PresetsTest, StartAsTheLibrariesDo) {
  torch::manual_seed(3);
  const auto std_of = [](const torch::nn::Module& model, const std::string& name) {
    return model.named_parameters()[name].std().item<double>();
  };
  const Bert bert(BertOptions{.vocab = 500, .hidden = 128, .layers = 1, .heads = 2});
  for (const auto& item : bert->named_parameters()) {
    const auto& value = item.value();
    if (value.dim() >= 2) {
      EXPECT_NEAR(value.std().item<double>(), 0.02, 0.002) << item.key();
    } else {
      const double expected = item.key().ends_with("LayerNorm.weight") ? 1 : 0;
      EXPECT_TRUE(value.eq(expected).all().item<bool>()) << item.key();
    }
  }
  EXPECT_EQ(bert->named_parameters()["bert.embeddings.word_embeddings.weight"][0]
                .abs()
                .sum()
                .item<double>(),
            0);

  const Resnet resnet(ResnetOptions{.blocks = {1, 1, 1, 1}, .zero_init_last_norm = true});
  EXPECT_NEAR(std_of(*resnet, "layer2.0.conv2.weight"), std::sqrt(2.0 / (128 * 9)), 5e-4);
  EXPECT_NEAR(std_of(*resnet, "fc.weight"), 1 / std::sqrt(3.0 * 2048), 5e-4);
  EXPECT_EQ(std_of(*resnet, "layer2.0.bn3.weight"), 0);
  EXPECT_EQ(resnet->named_parameters()["layer2.0.bn2.weight"].mean().item<double>(), 1);
  EXPECT_EQ(resnet->named_parameters()["layer2.0.bn3.weight"].mean().item<double>(), 0);

  const Vgg vgg(VggOptions{.stages = {{64, 64}}, .pooled = 2, .hidden = 64});
  EXPECT_NEAR(std_of(*vgg, "features.2.weight"), std::sqrt(2.0 / (64 * 9)), 2e-3);
  EXPECT_NEAR(std_of(*vgg, "classifier.0.weight"), 0.01, 1e-3);

  const Transformer transformer(TransformerOptions{.source_vocab = 300, .target_vocab = 300});
  EXPECT_NEAR(std_of(*transformer, "encoder.layers.0.self_attn.in_proj_weight"),
              std::sqrt(2.0 / (512 * 4)), 5e-4);
  EXPECT_NEAR(std_of(*transformer, "decoder.layers.5.linear1.weight"),
              std::sqrt(2.0 / (512 + 2048)), 5e-4);
  EXPECT_NEAR(std_of(*transformer, "embedding.weight"), 1 / std::sqrt(512.0), 5e-4);
}

TEST(PresetsTest, RefuseOptionsThatDoNotFit) {
  using fleet::testing::error_message_of;
  EXPECT_TRUE(says(error_message_of([] { Bert(BertOptions{.hidden = 100, .heads = 12}); }),
                   "100 hidden units do not divide into 12 heads", "multiple of heads"));
  EXPECT_TRUE(says(error_message_of([] {
                     Transformer(TransformerOptions{
                         .source_vocab = 10, .target_vocab = 20, .width = 30, .heads = 4});
                   }),
                   "width 30 does not divide into 4 heads", "vocabularies of 10 and 20 tokens"));
  const Bert bert(BertOptions{
      .vocab = 20, .hidden = 8, .layers = 1, .heads = 2, .intermediate = 8, .max_positions = 9});
  EXPECT_TRUE(says(error_message_of([&] { bert.loss(synthetic_batch(bert.options(), 2, 0, 10)); }),
                   "10 tokens, but there are 9 positions"));
}

}  // namespace
}  // namespace fleet::applications
