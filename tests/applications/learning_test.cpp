// SPDX-License-Identifier: Apache-2.0
// Each application learns its synthetic task, on samples that it has not seen; runs in bf16; drops
// in training alone.
#include <ATen/ops/_unique.h>
#include <gtest/gtest.h>

#include "fleet/applications/synthetic.h"
#include "fleet/optim/adam.h"
#include "fleet/precision/autocast.h"

namespace fleet::applications {
namespace {

struct Learned {
  double before = 0;
  double after = 0;
};

// The loss on samples that training does not see, before and after `steps` updates.
template <typename Model, typename Draw>
Learned learn(Model& model, int64_t steps, double lr, Draw&& draw) {
  optim::Adam adam(model, {.lr = lr});
  ParameterArena arena(model);
  adam.bind(arena);
  const auto measure = [&] {
    const torch::NoGradGuard no_grad;
    return torch::Tensor(model.loss(draw(1'000'000))).item<double>();
  };
  Learned result{.before = measure()};
  for (int64_t step = 0; step < steps; ++step) {
    arena.begin_window();
    torch::Tensor(model.loss(draw(step))).backward();
    arena.end_window();
    adam.step();
  }
  result.after = measure();
  ::testing::Test::RecordProperty("before", std::to_string(result.before));
  ::testing::Test::RecordProperty("after", std::to_string(result.after));
  return result;
}

TEST(LearningTest, Resnet) {
  torch::manual_seed(1);
  Resnet model(
      ResnetOptions{.blocks = {1, 1, 1, 1}, .bottleneck = false, .classes = 8, .width = 8});
  const auto learned = learn(model, 30, 3e-3, [&](int64_t seed) {
    return synthetic_batch(model.options(), 32, seed, 32);
  });
  EXPECT_GT(learned.before, 1.8);
  EXPECT_LT(learned.after, 0.5);
  const auto metrics = model.metrics(synthetic_batch(model.options(), 64, 77, 32));
  EXPECT_GT(metrics.acc1.item<double>(), 0.9);
  EXPECT_GE(metrics.acc5.item<double>(), metrics.acc1.item<double>());
}

TEST(LearningTest, Vgg) {
  torch::manual_seed(1);
  Vgg model(VggOptions{.stages = {{8}, {16}, {32, 32}},
                       .batch_norm = true,
                       .pooled = 2,
                       .hidden = 128,
                       .classes = 8,
                       .dropout = 0});
  const auto learned = learn(model, 45, 1e-2, [&](int64_t seed) {
    return synthetic_batch(model.options(), 32, seed, 32);
  });
  EXPECT_GT(learned.before, 1.8);
  EXPECT_LT(learned.after, 0.5);
}

TEST(LearningTest, Bert) {
  torch::manual_seed(1);
  Bert model(BertOptions{.vocab = 36,
                         .hidden = 64,
                         .layers = 2,
                         .heads = 4,
                         .intermediate = 128,
                         .max_positions = 32,
                         .hidden_dropout = 0,
                         .attention_dropout = 0});
  const auto learned = learn(model, 30, 5e-3, [&](int64_t seed) {
    return synthetic_batch(model.options(), 64, seed, 32);
  });
  EXPECT_GT(learned.before, 4);
  EXPECT_LT(learned.after, 2);
}

TEST(LearningTest, Transformer) {
  torch::manual_seed(1);
  Transformer model(TransformerOptions{.source_vocab = 16,
                                       .target_vocab = 16,
                                       .width = 64,
                                       .feed_forward = 128,
                                       .heads = 4,
                                       .encoder_layers = 1,
                                       .decoder_layers = 1,
                                       .dropout = 0,
                                       .label_smoothing = 0});
  const auto learned = learn(model, 100, 5e-3, [&](int64_t seed) {
    return synthetic_batch(model.options(), 64, seed, 8);
  });
  EXPECT_GT(learned.before, 2.5);
  EXPECT_LT(learned.after, 1);
}

// Small ones of all four, with dropout.
template <typename Check>
void for_each_application(Check&& check) {
  torch::manual_seed(1);
  {
    SCOPED_TRACE("resnet");
    const Resnet model(ResnetOptions{.blocks = {1, 1, 1, 1}, .classes = 10, .width = 8});
    check(model, synthetic_batch(model.options(), 8, 1, 64), /*has_dropout=*/false);
  }
  {
    SCOPED_TRACE("vgg");
    const Vgg model(VggOptions{.stages = {{8}, {16}}, .pooled = 2, .hidden = 64, .classes = 10});
    for (auto& parameter : model.parameters()) parameter.data().mul_(4);  // scores start near zero
    check(model, synthetic_batch(model.options(), 8, 1, 32), /*has_dropout=*/true);
  }
  {
    SCOPED_TRACE("bert");
    const Bert model(BertOptions{
        .vocab = 36, .hidden = 64, .layers = 2, .heads = 4, .intermediate = 128, .init_std = 0.1});
    check(model, synthetic_batch(model.options(), 8, 1, 32), /*has_dropout=*/true);
  }
  {
    SCOPED_TRACE("transformer");
    const Transformer model(TransformerOptions{.source_vocab = 30,
                                               .target_vocab = 30,
                                               .width = 64,
                                               .feed_forward = 128,
                                               .heads = 4,
                                               .encoder_layers = 1,
                                               .decoder_layers = 1});
    check(model, synthetic_batch(model.options(), 8, 1, 12), /*has_dropout=*/true);
  }
}

TEST(ApplicationTest, DropsInTrainingAlone) {
  for_each_application([](const auto& model, const auto& batch, bool has_dropout) {
    const auto loss = [&] { return torch::Tensor(model.loss(batch)).item<double>(); };
    EXPECT_EQ(loss() != loss(), has_dropout);
    model.ptr()->eval();
    EXPECT_EQ(loss(), loss());
  });
}

TEST(ApplicationTest, RunsInBf16) {
  const precision::Autocast autocast;
  for_each_application([&](const auto& model, const auto& batch, bool) {
    model.ptr()->eval();
    const auto expected = torch::Tensor(model.loss(batch)).item<double>();
    torch::Tensor loss;
    {
      const precision::AutocastScope scope(autocast);
      loss = model.loss(batch);
    }
    EXPECT_NE(loss.template item<double>(), expected);
    EXPECT_NEAR(loss.template item<double>() / expected, 1, 0.02);
    loss.backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_TRUE(item.value().grad().isfinite().all().template item<bool>()) << item.key();
    }
  });
}

TEST(ApplicationTest, MetricsAreThoseOfTheLoss) {
  for_each_application([](const auto& model, const auto& batch, bool) {
    model.ptr()->eval();
    EXPECT_FLOAT_EQ(model.metrics(batch).loss.template item<float>(),
                    torch::Tensor(model.loss(batch)).item<float>());
  });
}

TEST(SyntheticTest, FollowsFromItsArgumentsAlone) {
  const BertOptions options{.vocab = 300};
  const auto one = synthetic_batch(options, 16, 5, 40), again = synthetic_batch(options, 16, 5, 40),
             other = synthetic_batch(options, 16, 6, 40);
  EXPECT_TRUE(one.token_ids.equal(again.token_ids));
  EXPECT_TRUE(one.masked_positions.equal(again.masked_positions));
  EXPECT_FALSE(one.token_ids.equal(other.token_ids));
  // Positions are of tokens that are there, and no token is masked twice.
  EXPECT_TRUE(
      one.attention_mask.flatten().index_select(0, one.masked_positions).eq(1).all().item<bool>());
  EXPECT_EQ(std::get<0>(at::_unique(one.masked_positions)).size(0), one.masked_positions.size(0));
  EXPECT_GT(one.next_sentence_labels.sum().item<int64_t>(), 0);
  EXPECT_LT(one.next_sentence_labels.sum().item<int64_t>(), 16);

  const auto reversed =
      synthetic_batch(TransformerOptions{.source_vocab = 20, .target_vocab = 20}, 3, 1, 9);
  for (int64_t i = 0; i < 3; ++i) {
    const auto words = reversed.source_mask[i].sum().item<int64_t>() - 1;  // without the end
    EXPECT_TRUE(reversed.target[i]
                    .slice(0, 1, words + 1)
                    .flip(0)
                    .equal(reversed.source[i].slice(0, 0, words)));
  }
}

}  // namespace
}  // namespace fleet::applications
