// SPDX-License-Identifier: Apache-2.0
#include "fleet/precision/grad_scaler.h"

#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "fleet/precision/autocast.h"

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

constexpr float kInf = std::numeric_limits<float>::infinity();

torch::Tensor sample(torch::IntArrayRef sizes, uint64_t seed = 1) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed));
}

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(4, 8));
    last = register_module("last", torch::nn::Linear(8, 1));
    const torch::NoGradGuard no_grad;
    uint64_t seed = 10;
    for (auto& parameter : parameters()) parameter.copy_(sample(parameter.sizes(), seed++) * 0.5);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x))); }
  torch::nn::Linear first = nullptr, last = nullptr;
};

torch::Tensor loss_of(Net& net, const torch::Tensor& x) {
  return (net.forward(x) - x.sum(1, true)).square().mean();
}

bool same_bits(Net& a, Net& b) {
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    if (!torch::equal(a.parameters()[i], b.parameters()[i])) return false;
  }
  return true;
}

enum class Kind { kSgd, kAdam };

std::unique_ptr<torch::optim::Optimizer> make(Kind kind, Net& net) {
  if (kind == Kind::kAdam) {
    return std::make_unique<torch::optim::Adam>(net.parameters(), torch::optim::AdamOptions(0.01));
  }
  return std::make_unique<torch::optim::SGD>(
      net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

bool train_once(Net& net, torch::optim::Optimizer& optimizer, GradScaler& scaler,
                const torch::Tensor& x) {
  optimizer.zero_grad();
  scaler.scale(loss_of(net, x)).backward();
  const bool stepped = scaler.step(optimizer);
  scaler.update();
  return stepped;
}

// --- the scale ---------------------------------------------------------------------------------

// --- with optimizers ---------------------------------------------------------------------------

class GradScalerOptimizerTest : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(, GradScalerOptimizerTest, ::testing::Values(Kind::kSgd, Kind::kAdam),
                         [](const auto& kind) {
                           return kind.param == Kind::kSgd ? "Sgd" : "Adam";
                         });

TEST_P(GradScalerOptimizerTest, APowerOfTwoChangesNothingInFp32) {
  Net plain, scaled;
  auto plain_optimizer = make(GetParam(), plain);
  auto optimizer = make(GetParam(), scaled);
  GradScaler scaler({.incr_every_n_steps = 2});
  for (uint64_t i = 0; i < 6; ++i) {
    const auto x = sample({5, 4}, i);
    plain_optimizer->zero_grad();
    loss_of(plain, x).backward();
    plain_optimizer->step();
    EXPECT_TRUE(train_once(scaled, *optimizer, scaler, x));
  }
  EXPECT_EQ(scaler.scale(), 8 * 32768);
  EXPECT_TRUE(same_bits(plain, scaled));
}

TEST_P(GradScalerOptimizerTest, ASkippedStepChangesNothing) {
  Net undisturbed, disturbed;
  auto undisturbed_optimizer = make(GetParam(), undisturbed);
  auto optimizer = make(GetParam(), disturbed);
  GradScaler undisturbed_scaler, scaler;
  for (uint64_t i = 0; i < 4; ++i) {
    const auto x = sample({5, 4}, i);
    EXPECT_TRUE(train_once(undisturbed, *undisturbed_optimizer, undisturbed_scaler, x));
    EXPECT_TRUE(train_once(disturbed, *optimizer, scaler, x));
    if (i != 1 && i != 2) continue;
    EXPECT_FALSE(train_once(disturbed, *optimizer, scaler, x * kInf));
    // Momenta and step counts would show in the next step.
    EXPECT_TRUE(same_bits(undisturbed, disturbed));
  }
  EXPECT_TRUE(same_bits(undisturbed, disturbed));
  EXPECT_EQ(scaler.skipped_total(), 2);
}

TEST(GradScalerTest, TheScaleIsFrozenWhileBackwardsAddUp) {
  Net net;
  const auto x = sample({8, 4});
  loss_of(net, x).backward();
  const auto expected = net.first->weight.grad().clone();

  net.zero_grad();
  GradScaler scaler({.incr_every_n_steps = 1, .incr_ratio = 4});
  const auto half = [&](int64_t begin) { return loss_of(net, x.narrow(0, begin, 4)) / 2; };
  scaler.scale(half(0)).backward();
  const double scale = scaler.scale();
  scaler.scale(half(4)).backward();
  EXPECT_TRUE(torch::allclose(net.first->weight.grad(), expected * scale, 1e-4));
  EXPECT_TRUE(scaler.unscale(net));
  EXPECT_TRUE(torch::allclose(net.first->weight.grad(), expected, 1e-4));
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(scaler.scale(), scale);
  scaler.update();
  EXPECT_EQ(scaler.scale(), 4 * scale);
}

TEST(GradScalerTest, SharedParametersAreDividedOnce) {
  const auto weight = torch::ones({2}).requires_grad_();
  GradScaler scaler;
  scaler.scale((3 * weight).sum()).backward();
  EXPECT_TRUE(scaler.unscale(std::vector<NamedTensor>{{"in", weight}, {"out", weight}}));
  EXPECT_TRUE(torch::equal(weight.grad(), torch::full({2}, 3.f)));
}

TEST(GradScalerTest, SparseAndLowGradientsAreDividedToo) {
  const auto table = torch::ones({4, 2}).requires_grad_();
  const auto low = torch::ones({2}, torch::kBFloat16).requires_grad_();
  const auto rows = torch::embedding(table, torch::tensor({1, 1, 3}), -1, false, /*sparse=*/true);
  GradScaler scaler;
  scaler.scale(rows.sum() + (low * 2).sum()).backward();
  ASSERT_TRUE(table.grad().is_sparse());
  EXPECT_TRUE(scaler.unscale({table, low}));
  EXPECT_TRUE(
      torch::equal(table.grad().to_dense().select(1, 0), torch::tensor({0.f, 2.f, 0.f, 1.f})));
  EXPECT_TRUE(torch::equal(low.grad(), torch::full({2}, 2, torch::kBFloat16)));
}

TEST(GradScalerTest, ALossInHalfDoesNotOverflow) {
  const auto loss = torch::full({}, 3.f, torch::kHalf);
  EXPECT_EQ(GradScaler().scale(loss).item<float>(), 3 * 32768);
}

// --- what goes wrong ---------------------------------------------------------------------------

TEST(GradScalerTest, FailsAfterTooManySkipsAndNamesTheParameter) {
  Net net;
  auto optimizer = make(Kind::kSgd, net);
  GradScaler scaler({.max_skips_in_a_row = 3});
  const auto bad_window = [&] {
    optimizer->zero_grad();
    scaler.scale(loss_of(net, sample({2, 4}))).backward();
    net.last->weight.mutable_grad().fill_(kInf);
    EXPECT_FALSE(scaler.unscale(net));
    EXPECT_FALSE(scaler.step(*optimizer));
    scaler.update();
  };
  bad_window();
  bad_window();
  EXPECT_TRUE(says(error_message_of(bad_window), "[grad_scaler] 3 updates in a row were skipped",
                   "the gradient of parameter 'last.weight'", "The loss scale is 26214.4 now",
                   "fix: look for NaN in the samples"));
  EXPECT_EQ(scaler.skipped_total(), 3);
}

TEST(GradScalerTest, ABrokenWeightIsNoOverflow) {
  Net net;
  auto optimizer = make(Kind::kSgd, net);
  GradScaler scaler;
  {
    const torch::NoGradGuard no_grad;
    net.first->bias[0] = NAN;
  }
  const auto text = error_message_of([&] { train_once(net, *optimizer, scaler, sample({2, 4})); });
  EXPECT_TRUE(says(text, "parameter '#1' holds NaN or infinity", "no overflow of the loss scale",
                   "fix: go back to a snapshot"));
  GradScaler other;
  optimizer->zero_grad();
  other.scale(loss_of(net, sample({2, 4}))).backward();
  EXPECT_TRUE(
      says(error_message_of([&] { other.unscale(net); }), "parameter 'first.bias' holds NaN"));
}

TEST(GradScalerTest, ALoopOfOnesOwnLearnsTheNameToo) {
  Net net;
  loss_of(net, sample({2, 4})).backward();
  net.first->bias.mutable_grad().fill_(NAN);
  GradScaler scaler({.max_skips_in_a_row = 2});
  const auto parameters = [&] { return ModelHandle(net).parameters(); };
  scaler.update(true, parameters);
  EXPECT_TRUE(says(error_message_of([&] { scaler.update(true, parameters); }), "2 updates in a row",
                   "'first.bias'"));
  {
    const torch::NoGradGuard no_grad;
    net.last->bias.fill_(kInf);
  }
  GradScaler fresh;
  EXPECT_TRUE(says(error_message_of([&] { fresh.update(true, parameters); }),
                   "parameter 'last.bias' holds NaN or infinity"));
}

TEST(GradScalerTest, RefusesCallsInTheWrongOrder) {
  Net net;
  auto optimizer = make(Kind::kSgd, net);
  auto second = torch::optim::SGD({sample({1}).requires_grad_()}, 0.1);
  GradScaler scaler;
  EXPECT_TRUE(says(error_message_of([&] { scaler.update(); }), "no gradient was unscaled"));
  EXPECT_TRUE(
      says(error_message_of([&] { scaler.unscale(net); }), "none of 4 parameters has a gradient"));

  scaler.scale(loss_of(net, sample({2, 4}))).backward();
  scaler.scale((second.param_groups()[0].params()[0] * 2).sum()).backward();
  EXPECT_TRUE(scaler.unscale(net));
  EXPECT_TRUE(says(error_message_of([&] { scaler.unscale(net); }), "unscale() is called twice"));
  EXPECT_TRUE(says(error_message_of([&] { scaler.scale(torch::ones({})); }), "end every window"));
  EXPECT_TRUE(scaler.step(*optimizer));
  EXPECT_TRUE(says(error_message_of([&] { scaler.step(*optimizer); }), "step() is called twice"));
  EXPECT_TRUE(says(error_message_of([&] { scaler.step(second); }), "unscale() was not given"));
  scaler.update();

  EXPECT_TRUE(scaler.step(*optimizer));
  EXPECT_TRUE(says(error_message_of([&] { scaler.step(second); }), "a second optimizer steps"));
}

TEST(GradScalerTest, SeveralOptimizersSkipTogether) {
  Net good, bad;
  auto first = make(Kind::kSgd, good);
  auto second = make(Kind::kSgd, bad);
  GradScaler scaler;
  scaler.scale(loss_of(good, sample({2, 4}))).backward();
  scaler.scale(loss_of(bad, sample({2, 4}) * kInf)).backward();
  auto all = good.parameters();
  for (const auto& parameter : bad.parameters()) all.push_back(parameter);
  EXPECT_FALSE(scaler.unscale(all));
  EXPECT_FALSE(scaler.step(*first));
  EXPECT_FALSE(scaler.step(*second));
  scaler.update();
  EXPECT_TRUE(same_bits(good, bad));
}

// --- with autocast -----------------------------------------------------------------------------

TEST(GradScalerTest, SavesGradientsThatAreTooSmallForFp16) {
  const auto weight = torch::ones({2, 2}).requires_grad_();
  const precision::Autocast fp16({.dtype = torch::kHalf});
  GradScaler scaler;
  const auto loss = [&] {
    const precision::AutocastScope scope(fp16);
    return torch::ones({2, 2}).mm(weight).to(torch::kFloat).sum() * 1e-8;
  };
  loss().backward();
  EXPECT_EQ(weight.grad().abs().max().item<float>(), 0);
  weight.mutable_grad().reset();
  scaler.scale(loss()).backward();
  EXPECT_TRUE(scaler.unscale({weight}));
  EXPECT_TRUE(torch::allclose(weight.grad(), torch::full({2, 2}, 2e-8f), 1e-3, 0));
}

TEST(GradScalerTest, Fp16TrainsLikeFp32) {
  at::set_num_threads(1);  // LibTorch takes several for products of any size in half
  const auto final_loss = [](const precision::Autocast* autocast) {
    Net net;
    auto optimizer = make(Kind::kAdam, net);
    // Far too high at first: the scaler has to find its way down, past skipped steps.
    GradScaler scaler(
        {.init_loss_scaling = 16777216, .decr_every_n_nan_or_inf = 1, .decr_ratio = 0.1f});
    float loss = 0;
    for (uint64_t i = 0; i < 150; ++i) {
      optimizer->zero_grad();
      torch::Tensor scaled;
      {
        const precision::AutocastScope scope(autocast);
        const auto value = loss_of(net, sample({16, 4}, i));
        loss = value.item<float>();
        scaled = scaler.scale(value);
      }
      scaled.backward();
      scaler.step(*optimizer);
      scaler.update();
    }
    EXPECT_EQ(scaler.skipped_total() > 0, autocast != nullptr);
    return loss;
  };
  const precision::Autocast fp16({.dtype = torch::kHalf});
  const float exact = final_loss(nullptr);
  const float low = final_loss(&fp16);
  EXPECT_LT(exact, 1);
  EXPECT_NEAR(low, exact, 0.15 * exact);
}

}  // namespace
}  // namespace fleet
