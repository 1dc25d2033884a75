// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/mixed_precision.h"

#include <limits>

#include "tests/train/small_training.h"

namespace fleet {
namespace {

using namespace testing;  // NOLINT

DistributedStrategy amp(AmpConfigs configs) { return {.amp = true, .amp_configs = configs}; }
const auto kSingleRank = [] { return std::make_shared<comm::Communicator>(); };

struct Everything {
  Tensors values;
  explicit Everything(const DistributedOptimizer& optimizer, torch::nn::Sequential net) {
    for (const auto& span : optimizer.arena().spans()) values.push_back(span.value.clone());
    for (const auto& state : optimizer.optimizer().state()) {
      for (const auto& group : state.groups) values.push_back(group.clone());
    }
    for (const auto& buffer : net->buffers()) values.push_back(buffer.clone());
  }
};

TEST(MixedPrecisionTest, TrainsCloseToFullPrecision) {
  const auto full = train_small(1, {.samples = 40});
  for (const std::string dtype : {"bf16", "fp16"}) {
    const auto low = train_small(1, {.strategy = amp({.dtype = dtype}), .samples = 40});
    expect_close(low, full, 0.05, 0.02);
    bool differs = false;
    for (size_t i = 0; i < low.size(); ++i) differs = differs || !torch::equal(low[i], full[i]);
    EXPECT_TRUE(differs) << dtype << " computed in fp32";
  }
}

TEST(MixedPrecisionTest, ALossScaleThatIsAPowerOfTwoChangesNothingInBf16Range) {
  // fp16 gradients scaled by 2^10 and by 2^4 differ only where they underflow.
  const auto a = train_small(
      1, {.strategy = amp({.init_loss_scaling = 1024, .dtype = "fp16"}), .samples = 40});
  const auto b =
      train_small(1, {.strategy = amp({.init_loss_scaling = 16, .dtype = "fp16"}), .samples = 40});
  expect_close(a, b, 1e-3, 1e-4);
}

// Finite, but in backward its gradients overflow.
torch::Tensor overflowing_loss(torch::nn::Sequential net, const Batch& batch) {
  const auto loss = mean_loss(net, batch);
  loss.register_hook([](const torch::Tensor& gradient) { return gradient * HUGE_VALF; });
  return loss;
}

// What a rank does in the update that overflows: only rank 1's gradients are not finite.
torch::Tensor loss_that_overflows_on_rank_1(torch::nn::Sequential net, const Batch& batch,
                                            const Comm& comm, bool now) {
  const bool is_here = comm->rank() == comm->size() - 1;
  return now && is_here ? overflowing_loss(net, batch) : mean_loss(net, batch);
}

TEST(MixedPrecisionTest, AnOverflowOnOneRankIsSkippedByAllAndChangesNothingButTheScale) {
  for (const int ranks : {1, 2}) {
    for (const std::string name : {"Momentum", "Adam"}) {
      run_ranks(ranks, [&](const Comm& comm) {
        auto net = small_net(/*norm=*/true);
        DistributedOptimizer optimizer(small_optimizer(name, net, 0.1),
                                       amp({.init_loss_scaling = 64,
                                            .decr_every_n_nan_or_inf = 2,
                                            .decr_ratio = 0.5f,
                                            .dtype = "fp16"}),
                                       comm);
        const auto batch = small_batch(8, comm->rank());
        const auto minimize = [&](bool overflow) {
          return optimizer.minimize(
              [&] { return loss_that_overflows_on_rank_1(net, batch, comm, overflow); });
        };
        EXPECT_TRUE(minimize(false).updated);
        const Everything before(optimizer, net);
        for (const double scale : {64, 64}) {
          const auto report = minimize(true);
          EXPECT_TRUE(report.skipped);
          EXPECT_FALSE(report.updated);
          EXPECT_EQ(report.loss_scale, scale);
          EXPECT_EQ(report.update, 1);
        }
        expect_equal(Everything(optimizer, net).values, before.values);
        EXPECT_EQ(optimizer.optimizer().steps(), 1);
        EXPECT_EQ(optimizer.skipped_updates(), 2);
        const auto report = minimize(false);
        EXPECT_TRUE(report.updated);
        EXPECT_EQ(report.loss_scale, 32);  // two in a row halved it
        EXPECT_EQ(report.update, 2);
      });
    }
  }
}

TEST(MixedPrecisionTest, TheScaleIsFrozenWithinAWindowAndOneBadPartSkipsAllOfIt) {
  auto net = small_net();
  auto strategy = amp({.init_loss_scaling = 64,
                       .incr_every_n_steps = 1,
                       .decr_every_n_nan_or_inf = 1,
                       .decr_ratio = 0.5f,
                       .dtype = "fp16"});
  strategy.gradient_merge = true;
  strategy.gradient_merge_configs.k_steps = 3;
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), strategy, kSingleRank());
  const auto before = copies(net->parameters());
  const auto batch = small_batch(8, 0);
  const auto window = [&](int bad_part) {
    UpdateReport report;
    for (int part = 0; part < 3; ++part) {
      report = optimizer.minimize(
          [&] { return part == bad_part ? overflowing_loss(net, batch) : mean_loss(net, batch); });
      EXPECT_EQ(report.updated || report.skipped, part == 2);
    }
    return report;
  };
  auto report = window(/*bad_part=*/0);
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.loss_scale, 64);
  expect_equal(copies(net->parameters()), before);
  report = window(/*bad_part=*/-1);
  EXPECT_TRUE(report.updated);
  EXPECT_EQ(report.loss_scale, 32);
  EXPECT_EQ(window(-1).loss_scale, 64);  // it grew after one good update
}

TEST(MixedPrecisionTest, FailsWithTheNameOfTheGradientInsteadOfSkippingForEver) {
  auto net = small_net();
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1),
                                 amp({.dtype = "fp16", .max_skips_in_a_row = 3}), kSingleRank());
  const auto batch = small_batch(8, 0);
  const auto bad = [&] {
    // Only the gradient of the last bias is not finite.
    return optimizer.minimize(
        [&] { return mean_loss(net, batch) + (net->parameters().back() * HUGE_VALF).sum(); });
  };
  EXPECT_TRUE(bad().skipped);
  EXPECT_TRUE(bad().skipped);
  const auto text = error_message_of(bad);
  EXPECT_NE(text.find("3"), std::string::npos);
  EXPECT_NE(text.find("2.bias"), std::string::npos) << text;
}

TEST(MixedPrecisionTest, AWeightThatIsNotFiniteIsAnErrorAtOnce) {
  for (const std::string dtype : {"bf16", "fp16"}) {
    auto net = small_net();
    DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), amp({.dtype = dtype}),
                                   kSingleRank());
    {
      const torch::NoGradGuard no_grad;
      net->parameters()[2][0][0] = std::numeric_limits<float>::quiet_NaN();
    }
    const auto batch = small_batch(8, 0);
    const auto text =
        error_message_of([&] { optimizer.minimize([&] { return mean_loss(net, batch); }); });
    EXPECT_NE(text.find("parameter '2.weight' holds NaN or infinity"), std::string::npos) << text;
  }
}

TEST(MixedPrecisionTest, Bf16IsNotScaled) {
  auto net = small_net();
  DistributedOptimizer optimizer(small_optimizer("SGD", net, 0.1), amp({}), kSingleRank());
  const auto batch = small_batch(8, 0);
  EXPECT_EQ(optimizer.minimize([&] { return mean_loss(net, batch); }).loss_scale, 1);
}

TEST(MixedPrecisionTest, PureBf16KeepsMastersInFloat) {
  for (const std::string name : {"SGD", "Momentum", "Adam"}) {
    auto net = small_net(/*norm=*/true);
    DistributedOptimizer optimizer(small_optimizer(name, net, 0.1), amp({.use_pure_bf16 = true}),
                                   kSingleRank());
    for (int64_t step = 0; step < 5; ++step) {
      const auto batch = small_batch(16, step);
      optimizer.minimize(batch,
                         [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
    }
    bool differs = false;
    for (const auto& span : optimizer.arena().spans()) {
      EXPECT_EQ(span.value.scalar_type(), torch::kFloat);
      EXPECT_EQ(span.parameter.scalar_type(),
                span.parameter.dim() >= 2 ? torch::kBFloat16 : torch::kFloat);
      EXPECT_TRUE(
          torch::equal(span.parameter.detach(), span.value.to(span.parameter.scalar_type())));
      differs = differs || !torch::equal(span.parameter.to(torch::kFloat), span.value);
    }
    EXPECT_TRUE(differs) << "the masters hold no more than bf16";
    const auto x = small_batch(4, 0).data;
    EXPECT_ANY_THROW(net->forward(x));  // bf16 weights, fp32 input
    const auto autocast = optimizer.autocast();
    EXPECT_EQ(net->forward(x).scalar_type(), torch::kBFloat16);
  }
}

TEST(MixedPrecisionTest, UnknownOpsAreAnErrorAndTheModelIsLeftAlone) {
  auto net = small_net();
  const auto text = error_message_of([&] {
    DistributedOptimizer(small_optimizer("SGD", net, 0.1),
                         amp({.custom_white_list = {"softmaxx"},
                              .custom_black_list = {"layer_nrm"},
                              .use_pure_bf16 = true}),
                         kSingleRank());
  });
  EXPECT_NE(text.find("softmaxx"), std::string::npos) << text;
  EXPECT_NE(text.find("layer_nrm"), std::string::npos) << text;
  EXPECT_EQ(net->parameters()[0].scalar_type(), torch::kFloat);
}

TEST(MixedPrecisionTest, ClippingActsOnUnscaledGradients) {
  const auto train = [](const DistributedStrategy& strategy) {
    auto net = small_net();
    DistributedOptimizer optimizer(
        std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = 1, .max_grad_norm = 0.05}),
        strategy, kSingleRank());
    std::vector<double> norms;
    for (int64_t step = 0; step < 4; ++step) {
      const auto before = copies(net->parameters());
      const auto batch = small_batch(16, step);
      const auto report = optimizer.minimize(
          batch, [&](const Batch& micro_batch) { return mean_loss(net, micro_batch); });
      EXPECT_GT(*report.gradient_norm, 0.05);
      double moved = 0;
      const auto after = copies(net->parameters());
      for (size_t i = 0; i < after.size(); ++i) {
        moved += (after[i] - before[i]).square().sum().item<double>();
      }
      EXPECT_NEAR(std::sqrt(moved), 0.05, 1e-4);
      norms.push_back(*report.gradient_norm);
    }
    return norms;
  };
  const auto plain = train({});
  const auto scaled = train(amp({.dtype = "fp16"}));
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(scaled[i], plain[i], 0.01 * plain[i]);
}

TEST(MixedPrecisionTest, WithoutAmpAGradientThatIsNotFiniteIsNamedWhenClipping) {
  auto net = small_net();
  const auto before = copies(net->parameters());
  DistributedOptimizer optimizer(
      std::make_unique<optim::SGD>(net, optim::SgdOptions{.lr = 1, .max_grad_norm = 1}), {},
      kSingleRank());
  const auto batch = small_batch(8, 0);
  const auto text = error_message_of([&] {
    optimizer.minimize([&] {
      // The root of 0 has an infinite slope; times 0 the loss stays finite.
      return mean_loss(net, batch) + (net->parameters()[1] * 0).sqrt().sum();
    });
  });
  EXPECT_NE(text.find("the gradient of '0.bias' is not finite"), std::string::npos) << text;
  expect_equal(copies(net->parameters()), before);
}

}  // namespace
}  // namespace fleet
