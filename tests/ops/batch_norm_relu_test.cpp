// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/batch_norm_relu.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "fleet/memory/recompute.h"

#include "tests/ops/agreement.h"
#include "tests/support/error_of.h"

namespace fleet::ops {
namespace {

using testing::Tensors;
using torch::Tensor;

// x, weight, bias, residual
Tensors batch_norm_arguments(const std::vector<int64_t>& sizes) {
  torch::manual_seed(81);
  return {torch::randn(sizes, torch::kDouble) * 2 + 5,
          torch::rand({sizes[1]}, torch::kDouble) + 0.5, torch::randn({sizes[1]}, torch::kDouble),
          torch::randn(sizes, torch::kDouble)};
}

TEST(BatchNormReluTest, IsTheFormulaForwardAndBackward) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {3, 5, 4, 4}, {2, 16, 3, 7}, {4, 33, 1, 1}, {1, 64, 9, 9}}) {
    for (const bool adds : {false, true}) {
      for (const bool training : {true, false}) {
        for (const bool relu : {true, false}) {
          const auto op = [&](const Tensors& x) {
            const auto type = x[0].scalar_type();
            return batch_norm_relu(x[0], adds ? x[3] : Tensor(),
                                   {x[1], x[2], torch::full({sizes[1]}, 4.5, type),
                                    torch::full({sizes[1]}, 3.0, type)},
                                   {.training = training, .relu = relu});
          };
          auto arguments = batch_norm_arguments(sizes);
          if (!adds) arguments.pop_back();
          testing::expect_agreement(op, arguments, 2e-5);
        }
      }
    }
  }
}

TEST(BatchNormReluTest, StatisticsMoveAsLibTorchs) {
  const auto x = batch_norm_arguments({4, 6, 5, 5})[0].to(torch::kFloat);
  const auto weight = torch::ones({6}), bias = torch::zeros({6});
  const auto mean = torch::zeros({6}), var = torch::ones({6});
  const auto mean2 = mean.clone(), var2 = var.clone();
  batch_norm_relu(x, {}, {weight, bias, mean, var});
  torch::batch_norm(x, weight, bias, mean2, var2, true, 0.1, 1e-5, false);
  EXPECT_LE(testing::relative_error(mean, mean2), 1e-6);
  EXPECT_LE(testing::relative_error(var, var2), 1e-6);
}

TEST(BatchNormReluTest, LayoutDoesNotMatterAndTheResultIsChannelsLast) {
  const auto x = batch_norm_arguments({4, 6, 5, 5})[0].to(torch::kFloat);
  const BatchNormTensors norm{torch::ones({6}), torch::zeros({6}), {}, {}};
  const auto y = batch_norm_relu(x, {}, norm);
  EXPECT_TRUE(y.is_contiguous(torch::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(batch_norm_relu(x.contiguous(torch::MemoryFormat::ChannelsLast), {}, norm).equal(y));
}

// Statistics move once, and the replay does not move them again.
TEST(BatchNormReluTest, RecomputedIsPlain) {
  const auto arguments = batch_norm_arguments({4, 6, 5, 5});
  const auto run = [&](bool recomputed) {
    const auto x = arguments[0].to(torch::kFloat).requires_grad_();
    const auto mean = torch::zeros({6}), var = torch::ones({6});
    const auto weight = arguments[1].to(torch::kFloat).requires_grad_();
    const auto layers = [&] {
      return batch_norm_relu(x * 2, x, {weight, torch::zeros({6}), mean, var}).exp();
    };
    const auto y = recomputed ? recompute(layers) : layers();
    auto result = torch::autograd::grad({y.sum()}, {x, weight});
    result.push_back(mean);
    result.push_back(var);
    return result;
  };
  const auto plain = run(false), recomputed = run(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(recomputed[i])) << i;
}

TEST(BatchNormReluTest, HasShapesOnMetaAndRefusesWhatDoesNotFit) {
  const auto x = torch::empty({2, 3, 4, 4}, torch::kMeta).requires_grad_();
  const auto parameter = torch::empty({3}, torch::kMeta);
  batch_norm_relu(x, {}, {parameter, parameter, {}, {}}).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  const auto text = testing::error_message_of([] {
    batch_norm_relu(torch::ones({2, 3, 4, 4}), {}, {torch::ones({2}), torch::ones({2}), {}, {}});
  });
  EXPECT_NE(text.find("the weight [2]"), std::string::npos) << text;
}

}  // namespace
}  // namespace fleet::ops
