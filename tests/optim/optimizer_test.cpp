// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "fleet/optim/adam.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/sgd.h"

#include "tests/support/error_of.h"

namespace fleet::optim {
namespace {

using testing::error_message_of;

torch::nn::Sequential make_net() {
  torch::manual_seed(11);
  return torch::nn::Sequential(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
}

// Steps Fleet's and torch's optimizer side by side on the same losses, with a changing rate.
template <typename Make>
void expect_like_torch(Make make, torch::optim::Optimizer& theirs,
                       torch::nn::Sequential their_net) {
  auto net = make_net();
  std::unique_ptr<Optimizer> ours = make(net);
  ParameterArena arena(net);
  ours->bind(arena);
  const std::vector<bool> all(arena.spans().size(), true);
  const auto x = torch::randn({6, 5});
  for (int step = 0; step < 20; ++step) {
    const double lr = 0.05 / (1 + step % 3);
    ours->set_lr(lr);
    for (auto& group : theirs.param_groups()) group.options().set_lr(lr);
    arena.begin_window();
    net->forward(x).square().mean().backward();
    arena.end_window();
    ours->step(all);
    theirs.zero_grad();
    their_net->forward(x).square().mean().backward();
    theirs.step();
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      ASSERT_TRUE(torch::allclose(net->parameters()[i], their_net->parameters()[i], 1e-5, 1e-7))
          << "step " << step << ", parameter " << i;
    }
  }
}

TEST(OptimizerTest, SgdStepsLikeTorch) {
  auto net = make_net();
  torch::optim::SGD theirs(net->parameters(), torch::optim::SGDOptions(0.1).weight_decay(0.01));
  expect_like_torch(
      [](auto n) { return std::make_unique<SGD>(n, SgdOptions{.lr = 0.1, .weight_decay = 0.01}); },
      theirs, net);
}

TEST(OptimizerTest, MomentumStepsLikeTorchWithAndWithoutNesterov) {
  for (const bool nesterov : {false, true}) {
    auto net = make_net();
    torch::optim::SGD theirs(
        net->parameters(),
        torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(nesterov));
    expect_like_torch(
        [&](auto n) {
          return std::make_unique<Momentum>(
              n, MomentumOptions{
                     .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .use_nesterov = nesterov});
        },
        theirs, net);
  }
}

TEST(OptimizerTest, AdamStepsLikeTorch) {
  auto net = make_net();
  torch::optim::Adam theirs(net->parameters(),
                            torch::optim::AdamOptions(0.1).weight_decay(0.01).betas({0.8, 0.99}));
  expect_like_torch(
      [](auto n) {
        return std::make_unique<Adam>(
            n, AdamOptions{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.99, .weight_decay = 0.01});
      },
      theirs, net);
}

// Whether parameter `index` takes part in a step: one always does, one pauses, one starts late, one
// comes and goes.
bool is_used(size_t index, int step) {
  switch (index) {
    case 1:
      return step < 10 || step >= 30;
    case 2:
      return step >= 50;
    case 3:
      return step % 3 == 1;
    default:
      return true;
  }
}

// The same gradients for both, and none (torch: undefined) for parameters that pause.
void expect_like_torch_where_parameters_pause(Optimizer& ours, torch::nn::Sequential net,
                                              torch::optim::Optimizer& theirs,
                                              torch::nn::Sequential their_net) {
  ParameterArena arena(net);
  ours.bind(arena);
  auto generator = at::detail::createCPUGenerator(4);
  for (int step = 0; step < 60; ++step) {
    std::vector<bool> used;
    const auto parameters = their_net->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto gradient = torch::randn(parameters[i].sizes(), generator);
      used.push_back(is_used(i, step));
      arena.spans()[i].gradient.copy_(used[i] ? gradient : torch::zeros_like(gradient));
      parameters[i].mutable_grad() = used[i] ? gradient : torch::Tensor();
    }
    ours.step(used);
    theirs.step();
    for (size_t i = 0; i < parameters.size(); ++i) {
      ASSERT_TRUE(torch::allclose(net->parameters()[i], parameters[i], 1e-5, 1e-6))
          << "step " << step << ", parameter " << i << ", off by "
          << (net->parameters()[i] - parameters[i]).abs().max().item<float>();
    }
  }
}

TEST(OptimizerTest, AdamCountsTheUpdatesOfEachParameterAsTorchDoes) {
  auto net = make_net(), their_net = make_net();
  torch::optim::Adam theirs(their_net->parameters(),
                            torch::optim::AdamOptions(0.01).weight_decay(0.1));
  Adam ours(net, {.lr = 0.01, .weight_decay = 0.1});
  expect_like_torch_where_parameters_pause(ours, net, theirs, their_net);
}

TEST(OptimizerTest, AdamWCountsTheUpdatesOfEachParameterAsTorchDoes) {
  auto net = make_net(), their_net = make_net();
  torch::optim::AdamW theirs(their_net->parameters(),
                             torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  AdamW ours(net, {.lr = 0.01, .weight_decay = 0.1});
  expect_like_torch_where_parameters_pause(ours, net, theirs, their_net);
}

TEST(OptimizerTest, LeavesUnusedSpansAlone) {
  auto net = make_net();
  Momentum momentum(net, {.lr = 1, .weight_decay = 0.5});
  ParameterArena arena(net);
  momentum.bind(arena);
  std::vector<torch::Tensor> before;
  for (const auto& span : arena.spans()) before.push_back(span.parameter.detach().clone());
  arena.begin_window();
  net->forward(torch::ones({1, 5})).sum().backward();
  arena.end_window();
  momentum.step({true, false, false, true});
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(torch::equal(arena.spans()[i].parameter, before[i]), i == 1 || i == 2) << i;
  }
}

TEST(OptimizerTest, RefusesAllOptionsThatAreNotValidAtOnce) {
  auto net = make_net();
  EXPECT_NE(error_message_of([&] { SGD sgd(net, {.lr = -1}); }).find("the learning rate is -1"),
            std::string::npos);
  const auto text = error_message_of([&] { Adam adam(net, {.beta1 = 1, .epsilon = 0}); });
  EXPECT_NE(text.find("beta1 1 is outside [0, 1)"), std::string::npos) << text;
  EXPECT_NE(text.find("epsilon 0 is not above 0"), std::string::npos) << text;
  EXPECT_NE(error_message_of([&] {
              Momentum m(net, {.momentum = 0, .use_nesterov = true});
            }).find("looks ahead"),
            std::string::npos);
}

}  // namespace
}  // namespace fleet::optim
