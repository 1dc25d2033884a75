// SPDX-License-Identifier: Apache-2.0
// The worked examples of docs/adding.md, built as a user's own code: against the public headers.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "docs/adding/ema.h"
#include "docs/adding/lion.h"
#include "docs/adding/mlp.h"
#include "tests/data/temporary_folder.h"

namespace adding {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

Sequential make_net(torch::ScalarType dtype = torch::kFloat) {
  torch::manual_seed(3);
  Sequential net(Linear(5, 7), Linear(7, 2));
  net->to(dtype);
  return net;
}

fleet::Batch make_batch(int64_t samples, uint64_t seed = 11) {
  auto generator = at::detail::createCPUGenerator(seed);
  return {torch::randn({samples, 5}, generator), torch::randn({samples, 2}, generator)};
}

auto loss_of(Sequential& net) {
  return [&net](const fleet::Batch& batch) {
    return (net->forward(batch.data) - batch.target).square().mean();
  };
}

std::vector<torch::Tensor> values(const Sequential& net) {
  std::vector<torch::Tensor> copies;
  for (const auto& parameter : net->parameters()) copies.push_back(parameter.detach().clone());
  return copies;
}

// Parameters and momentum after each of eight updates beside the formula in double. Every update
// has a batch of its own, so that signs change.
void compare_with_formula(torch::ScalarType dtype, double tolerance) {
  auto net = make_net(dtype);
  constexpr double kLr = 0.01, kBeta1 = 0.9, kBeta2 = 0.99, kDecay = 0.1;
  Lion lion(net, {.lr = kLr, .beta1 = kBeta1, .beta2 = kBeta2, .weight_decay = kDecay});
  fleet::ParameterArena arena(net);
  lion.bind(arena);
  std::vector<torch::Tensor> expected, momentum;
  for (const auto& value : values(net)) {
    expected.push_back(value.to(torch::kDouble));
    momentum.push_back(torch::zeros_like(expected.back()));
  }
  for (uint64_t step = 0; step < 8; ++step) {
    const auto batch = make_batch(3, step);
    arena.begin_window();
    (net->forward(batch.data.to(dtype)) - batch.target.to(dtype)).square().mean().backward();
    arena.end_window();
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto gradient = net->parameters()[i].grad().to(torch::kDouble);
      const auto c = kBeta1 * momentum[i] + (1 - kBeta1) * gradient;
      expected[i] = expected[i] - kLr * (c.sign() + kDecay * expected[i]);
      momentum[i] = kBeta2 * momentum[i] + (1 - kBeta2) * gradient;
    }
    lion.step();
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto actual = net->parameters()[i].detach().to(torch::kDouble);
      EXPECT_LT((actual - expected[i]).abs().max().item<double>(), tolerance) << step << ", " << i;
      const auto& span = arena.spans()[i];
      const auto state = lion.state()[0].groups[span.group].narrow(0, span.offset, span.numel);
      EXPECT_LT((state - momentum[i].flatten()).abs().max().item<double>(), tolerance) << step;
    }
  }
}

TEST(LionTest, FusedPassFollowsTheFormula) { compare_with_formula(torch::kFloat, 1e-6); }
TEST(LionTest, OpsFollowTheFormula) { compare_with_formula(torch::kDouble, 1e-12); }

TEST(LionTest, MergedMicroBatchesAreOneBatch) {
  const auto batch = make_batch(12);
  const auto train = [&](const fleet::DistributedStrategy& strategy) {
    auto net = make_net();
    auto optimizer = fleet::distributed_optimizer(Lion(net, {.lr = 0.01}), strategy);
    for (int i = 0; i < 4; ++i) optimizer.minimize(batch, loss_of(net));
    return values(net);
  };
  const auto whole = train({});
  const auto merged = train({.gradient_merge = true, .gradient_merge_configs = {.k_steps = 3}});
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::allclose(whole[i], merged[i]));
}

TEST(LionTest, Bf16ParametersAreTheRoundedMasters) {
  auto net = make_net();
  fleet::DistributedStrategy strategy{.amp = true, .amp_configs = {.use_pure_bf16 = true}};
  auto optimizer = fleet::distributed_optimizer(Lion(net, {.lr = 0.01}), strategy);
  const auto batch = make_batch(6);
  optimizer.minimize(batch, [&](const fleet::Batch& b) {
    return (net->forward(b.data.to(torch::kBFloat16)) - b.target).square().mean();
  });
  int compared = 0;
  for (const auto& span : optimizer.arena().spans()) {
    if (!span.working.defined()) continue;
    EXPECT_TRUE(torch::equal(span.parameter.detach(), span.value.to(torch::kBFloat16)));
    ++compared;
  }
  EXPECT_EQ(compared, 2);
}

TEST(LionTest, WrongOptionsComeInOneError) {
  auto net = make_net();
  try {
    Lion(net, {.beta1 = 1, .weight_decay = -1});
    FAIL() << "accepted";
  } catch (const fleet::Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("beta1 1 is outside [0, 1)"), std::string::npos) << text;
    EXPECT_NE(text.find("weight_decay -1 is negative"), std::string::npos) << text;
  }
}

TEST(EmaTest, FollowsTheFormula) {
  auto net = make_net();
  auto optimizer = fleet::distributed_optimizer(Lion(net, {.lr = 0.01}));
  const auto ema = std::make_shared<Ema>(net, EmaOptions{.decay = 0.4});
  optimizer.attach(ema);
  auto expected = values(net);
  const auto batch = make_batch(6);
  for (int n = 1; n <= 6; ++n) {
    optimizer.minimize(batch, loss_of(net));
    const double decay = std::min(0.4, (1.0 + n) / (10.0 + n));
    const auto now = values(net);
    for (size_t i = 0; i < now.size(); ++i)
      expected[i] = decay * expected[i] + (1 - decay) * now[i];
  }
  const Ema::Scope averaged(*ema);
  const auto actual = values(net);
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TRUE(torch::allclose(actual[i], expected[i], 1e-5, 1e-7));
  }
}

TEST(EmaTest, TrainingIsTheSameWithEvaluationsInBetween) {
  const auto batch = make_batch(6);
  const auto train = [&](bool evaluate, const fleet::DistributedStrategy& strategy) {
    auto net = make_net();
    auto optimizer = fleet::distributed_optimizer(Lion(net, {.lr = 0.01}), strategy);
    optimizer.attach(std::make_shared<Ema>(net, EmaOptions{.decay = 0.9}));
    for (int i = 0; i < 4; ++i) {
      optimizer.minimize(batch, [&](const fleet::Batch& b) {
        const auto dtype = net->parameters()[0].scalar_type();
        return (net->forward(b.data.to(dtype)) - b.target).square().mean();
      });
      if (evaluate) const Ema::Scope averaged(*optimizer.hook<Ema>());
    }
    return values(net);
  };
  for (const bool bf16 : {false, true}) {
    const fleet::DistributedStrategy strategy{.amp = bf16, .amp_configs = {.use_pure_bf16 = bf16}};
    const auto without = train(false, strategy);
    const auto with = train(true, strategy);
    for (size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(torch::equal(with[i], without[i])) << bf16;
  }
}

TEST(EmaTest, SnapshotsHoldTheAverages) {
  const fleet::TemporaryFolder folder;
  const auto averages_after = [&](int begin, int end, const fleet::SnapshotOptions& options) {
    auto net = make_net();
    auto optimizer = fleet::distributed_optimizer(Lion(net, {.lr = 0.01}));
    optimizer.attach(std::make_shared<Ema>(net, EmaOptions{.decay = 0.9}));
    fleet::Snapshots snapshots(optimizer, options);
    EXPECT_EQ(optimizer.updates(), begin);
    for (int i = begin; i < end; ++i) {
      optimizer.minimize(make_batch(6, static_cast<uint64_t>(i)), loss_of(net));
      snapshots.after_update();
    }
    snapshots.finish();
    const Ema::Scope averaged(*optimizer.hook<Ema>());
    return values(net);
  };
  const fleet::SnapshotOptions saved{.snapshot_dir = folder.path(), .save_every = 3};
  const auto whole = averages_after(0, 6, {});
  averages_after(0, 3, saved);
  const auto resumed = averages_after(3, 6, saved);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(whole[i], resumed[i])) << i;
}

TEST(EmaTest, OptionsAreFlags) {
  EmaOptions options;
  const std::array good = {"train", "--decay", "0.5"};
  fleet::parse_train_configs(good.size(), good.data(), options);
  EXPECT_EQ(options.decay, 0.5);
  const std::array bad = {"train", "--decay", "1"};
  EXPECT_THROW(fleet::parse_train_configs(bad.size(), bad.data(), options), fleet::UsageError);
}

TEST(MlpTest, ItsTrialLearns) {
  const auto trial = mlp_application().trial;
  torch::manual_seed(1);
  const auto model = trial.make({});
  auto optimizer = fleet::distributed_optimizer(fleet::optim::Adam(model.module, {.lr = trial.lr}));
  const auto unseen = [&] {
    return fleet::mean_of(model.loss(trial.samples, 1'000'000)).item<double>();
  };
  EXPECT_GT(unseen(), trial.first_loss);
  for (int64_t step = 0; step < trial.updates; ++step) {
    optimizer.minimize([&] { return model.loss(trial.samples, step); });
  }
  EXPECT_LT(unseen(), trial.last_loss);
}

TEST(MlpTest, PresetsAreMadeWithoutMemory) {
  const auto model = mlp_application().presets[0].make({.outputs = 7, .device = torch::kMeta});
  EXPECT_TRUE(model.module->parameters()[0].is_meta());
  EXPECT_EQ(model.module->parameters().back().size(0), 7);
  EXPECT_TRUE(fleet::mean_of(model.loss(3, 1)).is_meta());
}

TEST(MlpTest, RecomputeAtItsCheckpointsIsPlainTraining) {
  const MlpOptions options{.image_size = 6, .hidden = 9, .layers = 3, .classes = 4};
  auto generator = at::detail::createCPUGenerator(5);
  const fleet::Batch batch{torch::randn({8, 3, 6, 6}, generator),
                           torch::arange(8, torch::kLong) % 4};
  const auto train = [&](fleet::DistributedStrategy strategy) {
    torch::manual_seed(2);
    Mlp model(options);
    auto optimizer = fleet::distributed_optimizer(fleet::optim::Momentum(model, {.lr = 0.1}),
                                                  model.with_checkpoints(strategy));
    double loss = 0;
    for (int i = 0; i < 3; ++i) {
      loss = optimizer
                 .minimize(batch, [&](const auto& micro_batch) { return model.loss(micro_batch); })
                 .loss;
    }
    return loss;
  };
  EXPECT_EQ(train({}), train({.recompute = true}));
  EXPECT_EQ(Mlp(options).checkpoints().size(), 3u);
}

}  // namespace
}  // namespace adding
