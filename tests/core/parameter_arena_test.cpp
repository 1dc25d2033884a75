// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/parameter_arena.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "fleet/core/error.h"

#include "tests/support/error_of.h"

namespace fleet {
namespace {

using testing::error_message_of;

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    torch::manual_seed(3);
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 5, 3)));
    conv->weight.set_data(conv->weight.contiguous(torch::MemoryFormat::ChannelsLast));
    half = register_parameter("half", torch::randn({7}, torch::kBFloat16));
    wide = register_parameter("wide", torch::randn({3}, torch::kDouble));
    transposed = register_parameter("transposed", torch::randn({4, 6}).t().detach());
    scalar = register_parameter("scalar", torch::tensor(2.0f));
    empty = register_parameter("empty", torch::empty({0}));
    frozen = register_parameter("frozen", torch::ones({2}), false);
  }
  torch::Tensor loss(const torch::Tensor& x) {
    return conv(x).square().mean() + half.to(torch::kFloat).square().sum() +
           wide.square().sum().to(torch::kFloat) + (transposed * frozen[0]).square().sum() +
           scalar * 3 + empty.sum();
  }
  torch::nn::Conv2d conv{nullptr};
  torch::Tensor half, wide, transposed, scalar, empty, frozen;
};
TORCH_MODULE(Mixed);

TEST(ParameterArenaTest, KeepsValuesStridesAndGradientsOfEveryKindOfParameter) {
  Mixed plain, net;
  const auto x = torch::randn({2, 3, 8, 8});
  ParameterArena arena(net);
  EXPECT_EQ(arena.groups().size(), 3u);
  EXPECT_EQ(arena.spans().size(), 7u);
  ASSERT_EQ(arena.frozen().size(), 1u);
  EXPECT_EQ(arena.frozen()[0].name, "frozen");
  EXPECT_TRUE(net->conv->weight.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_EQ(net->transposed.strides(), plain->transposed.strides());

  for (int step = 0; step < 3; ++step) {
    plain->zero_grad();
    plain->loss(x).backward();
    arena.begin_window();
    net->loss(x).backward();
    arena.end_window();
    for (const auto& item : plain->named_parameters()) {
      const auto mine = net->named_parameters()[item.key()];
      EXPECT_TRUE(torch::equal(mine, item.value())) << item.key();
      if (item.key() == "frozen") continue;
      EXPECT_TRUE(torch::equal(mine.grad(), item.value().grad())) << item.key();
      EXPECT_EQ(mine.grad().strides(), item.value().grad().strides()) << item.key();
    }
  }
}

TEST(ParameterArenaTest, SpansAreAlignedDisjointAndBackedByTheFlatBuffers) {
  Mixed net;
  ParameterArena arena(net);
  for (const auto& span : arena.spans()) {
    const auto& group = arena.groups()[span.group];
    EXPECT_EQ(reinterpret_cast<uintptr_t>(span.parameter.data_ptr()) % 64, 0u) << span.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(span.gradient.data_ptr()) % 64, 0u) << span.name;
    EXPECT_TRUE(span.parameter.numel() == 0 || span.parameter.is_alias_of(group.values))
        << span.name;
  }
  const torch::NoGradGuard no_grad;
  for (const auto& group : arena.groups()) group.values.fill_(5);
  for (const auto& span : arena.spans()) EXPECT_TRUE((span.parameter == 5).all().item<bool>());
}

TEST(ParameterArenaTest, AddsSeveralBackwardsOfOneWindow) {
  torch::nn::Linear plain(3, 2);
  torch::nn::Linear net(3, 2);
  {
    const torch::NoGradGuard no_grad;
    net->weight.copy_(plain->weight);
    net->bias.copy_(plain->bias);
  }
  ParameterArena arena(net);
  const auto x = torch::randn({4, 3});
  arena.begin_window();
  for (int part = 0; part < 3; ++part) {
    plain(x).square().sum().backward();
    net(x).square().sum().backward();
  }
  arena.end_window();
  EXPECT_TRUE(torch::equal(net->weight.grad(), plain->weight.grad()));
  arena.begin_window();
  EXPECT_FALSE(net->weight.grad().defined());
}

TEST(ParameterArenaTest, SharedTensorsHaveOnePlaceAndAllTheirNames) {
  torch::nn::Linear shared(3, 3);
  torch::nn::Sequential net(shared, shared);
  ParameterArena arena(net);
  ASSERT_EQ(arena.spans().size(), 2u);
  EXPECT_EQ(arena.spans()[0].name, "0.weight");
  EXPECT_EQ(arena.spans()[0].aliases, std::vector<std::string>{"1.weight"});
}

TEST(ParameterArenaTest, ValuesWrittenFromOutsideReachTheModelAndItsVersions) {
  torch::nn::Linear net(3, 3);
  ParameterArena arena(net, {.working_dtype = torch::kBFloat16});
  const auto version = net->weight._version();
  arena.groups()[0].values.fill_(0.5);
  arena.values_written();
  EXPECT_TRUE(torch::equal(net->weight, torch::full({3, 3}, 0.5, torch::kBFloat16)));
  EXPECT_GT(net->weight._version(), version);
}

TEST(ParameterArenaTest, TakesSparseGradients) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  ParameterArena arena(table);
  for (int step = 0; step < 2; ++step) {
    arena.begin_window();
    table(torch::tensor({1, 1, 7})).sum().backward();
    table(torch::tensor({2})).sum().backward();
    arena.end_window();
    EXPECT_EQ(table->weight.grad()[1][0].item<float>(), 2);
    EXPECT_EQ(table->weight.grad()[2][0].item<float>(), 1);
    EXPECT_EQ(table->weight.grad()[3][0].item<float>(), 0);
  }
}

TEST(ParameterArenaTest, GivesZerosToAParameterWithoutGradient) {
  torch::nn::Linear used(2, 2), unused(2, 2);
  torch::nn::Sequential net(used, unused);
  ParameterArena arena(net);
  for (int step = 0; step < 2; ++step) {
    arena.begin_window();
    (step == 0 ? unused : used)(torch::ones({1, 2})).sum().backward();
    arena.end_window();
  }
  EXPECT_FALSE(arena.has_gradient(2));
  EXPECT_EQ(unused->weight.grad().abs().sum().item<float>(), 0);  // not the gradient of step 0
}

TEST(ParameterArenaTest, NamesAGradientThatWasReplaced) {
  torch::nn::Linear net(2, 2);
  ParameterArena arena(net);
  arena.begin_window();
  net(torch::ones({1, 2})).sum().backward();
  net->bias.mutable_grad() = torch::zeros({2});
  const auto text = error_message_of([&] { arena.end_window(); });
  EXPECT_NE(text.find("the gradient of 'bias' was replaced"), std::string::npos) << text;
  EXPECT_NE(text.find("change gradients in place"), std::string::npos) << text;
}

TEST(ParameterArenaTest, NamesAParameterWhoseDataWasReplaced) {
  torch::nn::Linear net(2, 2);
  ParameterArena arena(net);
  net->to(torch::kDouble);
  const auto text = error_message_of([&] { arena.begin_window(); });
  EXPECT_NE(text.find("parameter 'weight' no longer lies in the arena"), std::string::npos) << text;
}

TEST(ParameterArenaTest, RefusesAModelWithNothingToTrain) {
  torch::nn::Linear net(2, 2);
  for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
  EXPECT_NE(
      error_message_of([&] { ParameterArena arena(net); }).find("no trainable parameter (2 in all"),
      std::string::npos);
}

TEST(ParameterArenaTest, LeavesTheModelWorkingWhenItEnds) {
  torch::nn::Linear net(2, 2);
  { ParameterArena arena(net); }
  net(torch::ones({1, 2})).sum().backward();
  EXPECT_TRUE(net->weight.grad().defined());
}

}  // namespace
}  // namespace fleet
