// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/outer_optimizer.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet {
namespace {

using testing::error_message_of;

torch::Tensor change_of(int window, int64_t numel) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(window) + 1);
  return torch::randn({numel}, generator) * 0.1;
}

// The anchor after some windows, from zeros.
torch::Tensor after_windows(const OuterOptimizerOptions& options,
                            const std::vector<double>& inner_rates) {
  torch::nn::Linear net(5, 3);
  ParameterArena arena(net);
  OuterOptimizer outer(arena, options);
  auto anchor = arena.make_state();
  for (size_t window = 0; window < inner_rates.size(); ++window) {
    outer.step(anchor, {change_of(static_cast<int>(window), anchor[0].numel())},
               inner_rates[window]);
  }
  return anchor[0];
}

TEST(OuterOptimizerTest, AveragingAddsTheMeanChange) {
  const auto anchor = after_windows({}, {0.1, 0.1, 0.1});
  auto expected = torch::zeros_like(anchor);
  for (int window = 0; window < 3; ++window) expected += change_of(window, anchor.numel());
  EXPECT_TRUE(torch::equal(anchor, expected));
}

// As SlowMo's algorithm 1 has it: u = beta u + (x_0 - average) / gamma;  x = x_0 - alpha gamma u.
TEST(OuterOptimizerTest, SlowMomentumIsSlowMos) {
  const std::vector<double> rates = {0.1, 0.1, 0.05, 0.02};
  const auto anchor =
      after_windows({.rule = OuterRule::kSlowMomentum, .lr = 0.8, .momentum = 0.6}, rates);
  auto x = torch::zeros_like(anchor, torch::kDouble);
  auto u = torch::zeros_like(x);
  for (size_t window = 0; window < rates.size(); ++window) {
    const auto average = x + change_of(static_cast<int>(window), anchor.numel());
    u = 0.6 * u + (x - average) / rates[window];
    x = x - 0.8 * rates[window] * u;
  }
  EXPECT_TRUE(torch::allclose(anchor.to(torch::kDouble), x, 1e-5, 1e-7));
}

// The pseudo-gradient, x_0 - average, goes through torch's own SGD with Nesterov momentum.
TEST(OuterOptimizerTest, NesterovIsDiLoCos) {
  const auto anchor = after_windows({.rule = OuterRule::kNesterov, .lr = 0.7, .momentum = 0.9},
                                    {0.1, 0.1, 0.1, 0.1});
  auto x = torch::zeros_like(anchor).requires_grad_();
  torch::optim::SGD sgd({x}, torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true));
  for (int window = 0; window < 4; ++window) {
    x.mutable_grad() = -change_of(window, anchor.numel());
    sgd.step();
  }
  EXPECT_TRUE(torch::allclose(anchor, x.detach(), 1e-5, 1e-7));
}

TEST(OuterOptimizerTest, SlowMomentumAveragesWhereTheInnerRateIsZero) {
  const auto anchor = after_windows({.rule = OuterRule::kSlowMomentum}, {0.0});
  EXPECT_TRUE(torch::equal(anchor, change_of(0, anchor.numel())));
}

TEST(OuterOptimizerTest, RefusesAStepThatGoesNowhere) {
  torch::nn::Linear net(5, 3);
  ParameterArena arena(net);
  EXPECT_TRUE(says(error_message_of([&] {
                     OuterOptimizer(arena, {.rule = OuterRule::kNesterov, .momentum = 1});
                   }),
                   "lr 1 and momentum 1", "below 1"));
}

}  // namespace
}  // namespace fleet
