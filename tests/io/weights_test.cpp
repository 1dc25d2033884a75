// SPDX-License-Identifier: Apache-2.0
#include "fleet/io/weights.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "fleet/applications/bert.h"
#include "fleet/applications/resnet.h"
#include "fleet/core/error.h"

#include "tests/data/temporary_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

applications::Bert small_bert(int64_t vocab = 20) {
  return applications::Bert(applications::BertOptions{.vocab = vocab,
                                                      .hidden = 8,
                                                      .layers = 1,
                                                      .heads = 2,
                                                      .intermediate = 16,
                                                      .max_positions = 12});
}

bool equal_tensors(const ModelHandle& a, const ModelHandle& b) {
  for (const auto list : {&ModelHandle::parameters, &ModelHandle::buffers}) {
    const auto left = (a.*list)(), right = (b.*list)();
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size(); ++i) {
      if (left[i].name != right[i].name || !torch::equal(left[i].tensor, right[i].tensor))
        return false;
    }
  }
  return true;
}

class WeightsTest : public ::testing::Test {
 protected:
  // The tensors of a file, to be changed and written to another.
  std::vector<NamedTensor> tensors(const std::filesystem::path& path) {
    const SafetensorsFile file(path);
    std::vector<NamedTensor> result;
    for (const auto& entry : file.entries()) result.push_back({entry.name, file.read(entry)});
    return result;
  }
  std::filesystem::path saved(const ModelHandle& model) {
    save_weights(model, folder_.path() / "saved");
    return folder_.path() / "saved";
  }
  std::filesystem::path written(const std::vector<NamedTensor>& tensors) {
    write_safetensors(folder_.path() / "written", tensors);
    return folder_.path() / "written";
  }

  TemporaryFolder folder_;
};

TEST_F(WeightsTest, ComeBackBitForBit) {
  auto bert = small_bert(), other = small_bert();
  ASSERT_FALSE(equal_tensors(bert, other));
  EXPECT_TRUE(load_weights(other, saved(bert)).complete());
  EXPECT_TRUE(equal_tensors(bert, other));

  const applications::ResnetOptions options{
      .blocks = {1, 1, 1, 1}, .bottleneck = false, .classes = 3, .width = 4};
  applications::Resnet resnet(options), twin(options);
  resnet->named_buffers()["bn1.running_mean"].fill_(3);
  load_weights(twin, saved(resnet));  // channels-last in memory, plain in the file
  EXPECT_TRUE(equal_tensors(resnet, twin));
}

TEST_F(WeightsTest, TakeFilesOfTransformers) {
  auto bert = small_bert(), other = small_bert();
  auto file = tensors(saved(bert));
  torch::Tensor words, bias;
  for (auto& [name, tensor] : file) {
    if (name == "bert.embeddings.word_embeddings.weight") words = tensor;
    if (name == "cls.predictions.bias") bias = tensor;
    if (name == "bert.embeddings.LayerNorm.weight") name = "bert.embeddings.LayerNorm.gamma";
    if (name == "bert.embeddings.LayerNorm.bias") name = "bert.embeddings.LayerNorm.beta";
  }
  file.push_back({"bert.embeddings.position_ids", torch::arange(12).unsqueeze(0)});
  file.push_back({"cls.predictions.decoder.weight", words});
  file.push_back({"cls.predictions.decoder.bias", bias});
  load_weights(other, written(file));
  EXPECT_TRUE(equal_tensors(bert, other));

  file.back().tensor = bias + 1;
  EXPECT_TRUE(says(error_message_of([&] { load_weights(other, written(file)); }),
                   "cls.predictions.decoder.bias differs from cls.predictions.bias"));
  EXPECT_TRUE(equal_tensors(bert, other));
}

TEST_F(WeightsTest, AreConvertedToTheTypeOfTheModel) {
  auto bert = small_bert(), other = small_bert();
  auto file = tensors(saved(bert));
  for (auto& named : file) named.tensor = named.tensor.to(torch::kBFloat16);
  load_weights(other, written(file));
  for (size_t i = 0; i < bert->parameters().size(); ++i) {
    const auto now = other->parameters()[i];
    EXPECT_EQ(now.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(now, bert->parameters()[i].to(torch::kBFloat16).to(torch::kFloat)));
  }
}

TEST_F(WeightsTest, NameEverythingThatDoesNotFitAtOnce) {
  auto bert = small_bert(), other = small_bert(21);
  const auto before = other->parameters()[0].clone();
  auto file = tensors(saved(bert));
  for (auto& [name, tensor] : file) {
    if (name == "bert.pooler.dense.bias") name = "bert.pooler.dense.bais";
  }
  file.push_back({"classifier.weight", torch::zeros({2, 8})});
  const auto path = written(file);
  const auto text = error_message_of([&] { load_weights(other, path); });
  EXPECT_TRUE(says(text, path.string(), "1 missing, 2 unexpected, 2 mismatched",
                   "missing: bert.pooler.dense.bias",
                   "unexpected: bert.pooler.dense.bais (did you mean 'bert.pooler.dense.bias'?)",
                   "unexpected: classifier.weight",
                   "bert.embeddings.word_embeddings.weight is 20 x 8 in the file and 21 x 8 in "
                   "the model",
                   "cls.predictions.bias is 20 in the file and 21 in the model"));
  EXPECT_TRUE(torch::equal(other->parameters()[0], before));
  EXPECT_TRUE(
      says(error_message_of([&] { load_weights(other, path, {.strict = false}); }), "21 x 8"));

  auto third = small_bert();
  const auto match = load_weights(third, path, {.strict = false});
  EXPECT_EQ(match.missing, (std::vector<std::string>{"bert.pooler.dense.bias"}));
  EXPECT_EQ(match.unexpected.size(), 2U);
  EXPECT_TRUE(torch::equal(third->parameters()[0], bert->parameters()[0]));
}

// One tensor under two names is written once, and found under either.
TEST_F(WeightsTest, NeedOneNameOfATiedTensor) {
  struct Tied : torch::nn::Module {
    Tied() {
      a = register_parameter("a", torch::arange(3, torch::kFloat));
      register_parameter("b", a);
    }
    torch::Tensor a;
  };
  Tied model;
  EXPECT_EQ(tensors(saved(model)).size(), 1U);
  load_weights(model, written({{"b", torch::arange(3, 6)}}));
  EXPECT_EQ(model.a[2].item<float>(), 5);
  EXPECT_TRUE(says(error_message_of([&] { load_weights(model, written({})); }), "missing: a"));
  load_weights(model, written({{"a", torch::arange(3)}, {"b", torch::arange(3)}}));
  EXPECT_TRUE(
      says(error_message_of([&] {
             load_weights(model, written({{"a", torch::arange(3)}, {"b", torch::zeros({3})}}));
           }),
           "b differs from a"));
}

}  // namespace
}  // namespace fleet
