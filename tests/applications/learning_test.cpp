// SPDX-License-Identifier: Apache-2.0
// What holds for every application of applications.cpp, at the size of its trial: it learns its
// synthetic task, on samples that it has not seen; recomputes as it trains plainly; runs in bf16;
// drops in training alone.
#include <ATen/ops/_unique.h>
#include <gtest/gtest.h>

#include "fleet/applications/applications.h"
#include "fleet/optim/adam.h"
#include "fleet/precision/autocast.h"
#include "fleet/train/distributed_optimizer.h"

namespace fleet::applications {
namespace {

struct Learned {
  double before = 0;
  double after = 0;
};

// The loss on samples that training does not see, before and after `updates`; `loss` is that of the
// batch with a seed.
template <typename LossOfSeed>
Learned learn(const ModelHandle& model, int64_t updates, double lr, LossOfSeed&& loss) {
  optim::Adam adam(model, {.lr = lr});
  ParameterArena arena(model);
  adam.bind(arena);
  const auto measure = [&] {
    const torch::NoGradGuard no_grad;
    return mean_of(loss(1'000'000)).template item<double>();
  };
  Learned result{.before = measure()};
  for (int64_t step = 0; step < updates; ++step) {
    arena.begin_window();
    mean_of(loss(step)).backward();
    arena.end_window();
    adam.step();
  }
  result.after = measure();
  ::testing::Test::RecordProperty("before", std::to_string(result.before));
  ::testing::Test::RecordProperty("after", std::to_string(result.after));
  return result;
}

std::vector<std::string> names_of_all() {
  std::vector<std::string> names;
  for (const auto& application : all_applications()) names.emplace_back(application.name);
  return names;
}

class EveryApplicationTest : public ::testing::TestWithParam<std::string> {
 protected:
  EveryApplicationTest()
      : application_(*std::ranges::find(all_applications(), GetParam(), &ApplicationEntry::name)) {
    torch::manual_seed(1);
  }

  const ApplicationEntry& application_;
  const Trial& trial_ = application_.trial;
};
INSTANTIATE_TEST_SUITE_P(, EveryApplicationTest, ::testing::ValuesIn(names_of_all()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryApplicationTest, LearnsItsSyntheticTask) {
  const auto model = trial_.make({.dropout = false});
  const auto learned = learn(model.module, trial_.updates, trial_.lr,
                             [&](int64_t seed) { return model.loss(trial_.samples, seed); });
  EXPECT_GT(learned.before, trial_.first_loss);
  EXPECT_LT(learned.after, trial_.last_loss);
}

TEST_P(EveryApplicationTest, RecomputeAtItsCheckpointsIsPlainTraining) {
  std::vector<int64_t> segments;
  const auto losses = [&](bool recompute) {
    torch::manual_seed(2);
    const auto model = trial_.make({});
    DistributedStrategy strategy{.recompute = recompute};
    if (recompute) strategy.recompute_configs = {.checkpoints = model.checkpoints};
    auto optimizer = distributed_optimizer(optim::Adam(model.module, {.lr = trial_.lr}), strategy);
    std::vector<double> seen;
    for (int64_t step = 0; step < 3; ++step) {
      const auto report = optimizer.minimize([&] { return model.loss(8, step); });
      seen.push_back(report.loss);
      segments.push_back(report.memory.segments);
    }
    return seen;
  };
  const auto plain = losses(false);
  EXPECT_EQ(losses(true), plain);
  EXPECT_EQ(segments[2], 0);
  EXPECT_GT(segments[5], 0) << "nothing was recomputed";
}

TEST_P(EveryApplicationTest, DropsInTrainingAlone) {
  const auto model = trial_.make({});
  const auto loss = [&] { return mean_of(model.loss(8, 1)).item<double>(); };
  EXPECT_EQ(loss() != loss(), application_.has_dropout);
  model.module->eval();
  EXPECT_EQ(loss(), loss());
}

TEST_P(EveryApplicationTest, RunsInBf16) {
  const auto model = trial_.make({});
  for (auto& parameter : model.module->parameters()) parameter.data().mul_(2);  // scores are small
  model.module->eval();
  const auto expected = mean_of(model.loss(8, 1)).item<double>();
  const precision::Autocast autocast;
  torch::Tensor loss;
  {
    const precision::AutocastScope scope(autocast);
    loss = mean_of(model.loss(8, 1));
  }
  EXPECT_NE(loss.item<double>(), expected);
  EXPECT_NEAR(loss.item<double>() / expected, 1, 0.02);
  loss.backward();
  for (const auto& item : model.module->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

TEST_P(EveryApplicationTest, MetricsAreThoseOfTheLoss) {
  const auto model = trial_.make({});
  model.module->eval();
  EXPECT_FLOAT_EQ(model.loss_of_metrics(8, 1).item<float>(),
                  mean_of(model.loss(8, 1)).item<float>());
}

TEST_P(EveryApplicationTest, PresetsHaveNamesOfTheirOwnAndCheckpoints) {
  ASSERT_FALSE(application_.presets.empty());
  for (const auto& preset : application_.presets) {
    EXPECT_EQ(&preset_named(preset.name).preset, &preset) << preset.name;
    EXPECT_FALSE(preset.make({.device = torch::kMeta}).checkpoints.empty()) << preset.name;
  }
}

TEST(LearningTest, ResnetNamesImagesThatItHasNotSeen) {
  torch::manual_seed(1);
  Resnet model(
      ResnetOptions{.blocks = {1, 1, 1, 1}, .bottleneck = false, .classes = 8, .width = 8});
  const auto learned = learn(model, 30, 3e-3, [&](int64_t seed) -> Loss {
    return model.loss(synthetic_batch(model.options(), 32, seed, 32));
  });
  EXPECT_GT(learned.before, 1.8);
  EXPECT_LT(learned.after, 0.5);
  const auto metrics = model.metrics(synthetic_batch(model.options(), 64, 77, 32));
  EXPECT_GT(metrics.acc1.item<double>(), 0.9);
  EXPECT_GE(metrics.acc5.item<double>(), metrics.acc1.item<double>());
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
