// SPDX-License-Identifier: Apache-2.0
// The models against what torchvision, transformers and torch.nn compute with the same weights and
// input (golden/generate.py): scores, losses, gradients, statistics.
#include <gtest/gtest.h>

#include "fleet/applications/bert.h"
#include "fleet/applications/resnet.h"
#include "fleet/applications/transformer.h"
#include "fleet/applications/vgg.h"
#include "fleet/core/text/format.h"

#include "tests/applications/golden_case.h"

namespace fleet::applications {
namespace {

using testing::GoldenCase;
using testing::image_numbers;

struct Precision {
  torch::ScalarType dtype;
  double tolerance;  // relative
  double floor;      // of gradients, as a share of the largest
};
// Double shows that each gradient is right; float, that rounding stays small. Torchvision's own
// gradients in float are off by up to 6e-6 of each tensor's, so there the largest is the measure.
constexpr Precision kPrecisions[] = {{torch::kDouble, 1e-10, 1e-4}, {torch::kFloat, 1e-5, 1}};

void record(const std::string& what, const Precision& precision, double error) {
  ::testing::Test::RecordProperty(
      format("{}_{}", what, precision.dtype == torch::kDouble ? "double" : "float"),
      format("{:.1e}", error));
}

void expect_same(const torch::Tensor& got, const nlohmann::json& expected,
                 const Precision& precision, const std::string& what) {
  const double error = GoldenCase::error(got, expected);
  EXPECT_LE(error, precision.tolerance) << what;
  record(what, precision, error);
}

template <typename Model>
void expect_same_gradients(const GoldenCase& golden, Model& model, const Precision& precision) {
  std::string worst;
  const double error = golden.gradient_error(*model, precision.floor, worst);
  EXPECT_LE(error, precision.tolerance) << "gradient of " << worst;
  record("gradient", precision, error);
}

BertBatch bert_batch(const GoldenCase& golden) {
  return {golden.tokens("token_ids"),      golden.tokens("token_type_ids"),
          golden.tokens("attention_mask"), golden.tokens("masked_positions"),
          golden.tokens("masked_labels"),  golden.tokens("next_sentence_labels")};
}

TEST(GoldenTest, BertIsThatOfTransformers) {
  const GoldenCase golden("bert");
  const auto batch = bert_batch(golden);
  const auto& o = golden["options"];
  for (const auto path : {ops::AttentionPath::kPlain, ops::AttentionPath::kFused}) {
    for (const auto& precision : kPrecisions) {
      Bert model(BertOptions{.vocab = o["vocab"],
                             .hidden = o["hidden"],
                             .layers = o["layers"],
                             .heads = o["heads"],
                             .intermediate = o["intermediate"],
                             .max_positions = o["max_positions"],
                             .type_vocab = o["type_vocab"],
                             .hidden_dropout = 0,
                             .attention_dropout = 0,
                             .attention_path = path});
      ASSERT_NO_FATAL_FAILURE(golden.fill(*model, precision.dtype));
      const auto scores = model->forward(batch);
      expect_same(scores.masked_tokens, golden["scores"], precision, "scores");
      expect_same(scores.next_sentence, golden["next_sentence_scores"], precision, "next_sentence");
      const auto metrics = model.metrics(batch);
      expect_same(metrics.loss, golden["loss"], precision, "loss");
      expect_same(metrics.masked_lm_loss, golden["masked_lm_loss"], precision, "masked_lm_loss");
      expect_same(metrics.next_sentence_loss, golden["next_sentence_loss"], precision,
                  "next_sentence_loss");
      model.loss(batch).mean().backward();
      expect_same_gradients(golden, model, precision);
    }
  }
}

template <typename Model>
void expect_same_images(const GoldenCase& golden, Model model, const Precision& precision) {
  ASSERT_NO_FATAL_FAILURE(golden.fill(*model, precision.dtype));
  const auto shape = golden["batch"]["shape"].template get<std::vector<int64_t>>();
  const Batch batch{image_numbers(golden["batch"]["stream"], shape).to(precision.dtype),
                    golden.tokens("target")};
  const auto scores = model->forward(batch.data);
  expect_same(scores, golden["scores"], precision, "scores");
  const auto buffers = model->named_buffers();
  for (const auto& [name, values] : golden["buffers"].items()) {
    ASSERT_NE(buffers.find(name), nullptr) << name;
    expect_same(buffers[name], values, precision, "buffers");
  }
  model->eval();
  expect_same(model->forward(batch.data), golden["eval_scores"], precision, "eval_scores");
  model->train();
  const torch::Tensor loss = model.loss(batch);
  expect_same(loss, golden["loss"], precision, "loss");
  loss.backward();
  expect_same_gradients(golden, model, precision);
}

void expect_same_resnet(const std::string& name) {
  const GoldenCase golden(name);
  const auto& o = golden["options"];
  for (const bool channels_last : {true, false}) {
    for (const auto& precision : kPrecisions) {
      expect_same_images(golden,
                         Resnet(ResnetOptions{.blocks = o["blocks"],
                                              .bottleneck = o["bottleneck"].get<bool>(),
                                              .classes = o["classes"],
                                              .label_smoothing = o["label_smoothing"],
                                              .channels_last = channels_last}),
                         precision);
    }
  }
}

TEST(GoldenTest, ResnetOfBasicBlocksIsThatOfTorchvision) { expect_same_resnet("resnet_basic"); }
TEST(GoldenTest, ResnetOfBottlenecksIsThatOfTorchvision) {
  expect_same_resnet("resnet_bottleneck");
}

TEST(GoldenTest, VggIsThatOfTorchvision) {
  for (const std::string name : {"vgg", "vgg_bn"}) {
    SCOPED_TRACE(name);
    const GoldenCase golden(name);
    const auto& o = golden["options"];
    for (const auto& precision : kPrecisions) {
      expect_same_images(golden,
                         Vgg(VggOptions{.stages = o["stages"],
                                        .batch_norm = o["batch_norm"],
                                        .pooled = o["pooled"],
                                        .hidden = o["hidden"],
                                        .classes = o["classes"],
                                        .dropout = 0}),
                         precision);
    }
  }
}

TEST(GoldenTest, TransformerIsThatOfTorch) {
  for (const std::string name : {"transformer_paper", "transformer_torch"}) {
    SCOPED_TRACE(name);
    const GoldenCase golden(name);
    const auto& o = golden["options"];
    const TransformerBatch batch{golden.tokens("source"), golden.tokens("source_mask"),
                                 golden.tokens("target"), golden.tokens("target_mask")};
    for (const auto path : {ops::AttentionPath::kPlain, ops::AttentionPath::kFused}) {
      for (const auto& precision : kPrecisions) {
        Transformer model(TransformerOptions{.source_vocab = o["source_vocab"],
                                             .target_vocab = o["target_vocab"],
                                             .width = o["width"],
                                             .feed_forward = o["feed_forward"],
                                             .heads = o["heads"],
                                             .encoder_layers = o["encoder_layers"],
                                             .decoder_layers = o["decoder_layers"],
                                             .max_positions = o["max_positions"],
                                             .dropout = 0,
                                             .label_smoothing = o["label_smoothing"],
                                             .shared_embeddings = o["shared_embeddings"],
                                             .final_norm = o["final_norm"],
                                             .attention_path = path});
        ASSERT_NO_FATAL_FAILURE(golden.fill(*model, precision.dtype));
        const auto scores = model->forward(batch);
        const auto is_real = batch.target_mask.to(torch::kBool).unsqueeze(-1);
        expect_same(scores.masked_select(is_real), golden["scores"], precision, "scores");
        const auto metrics = model.metrics(batch);
        expect_same(metrics.loss, golden["loss"], precision, "loss");
        expect_same(metrics.negative_log_likelihood, golden["negative_log_likelihood"], precision,
                    "negative_log_likelihood");
        metrics.loss.backward();
        expect_same_gradients(golden, model, precision);
      }
    }
  }
}

}  // namespace
}  // namespace fleet::applications
