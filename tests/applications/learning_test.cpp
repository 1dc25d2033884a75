// Each application learns its synthetic task, on samples that it has not seen.
#include <gtest/gtest.h>

#include "fleet/applications/synthetic.h"
#include "fleet/optim/adam.h"

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
    return model.loss(draw(1'000'000)).template item<double>();
  };
  Learned result{.before = measure()};
  for (int64_t step = 0; step < steps; ++step) {
    arena.begin_window();
    model.loss(draw(step)).backward();
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

}  // namespace
}  // namespace fleet::applications
