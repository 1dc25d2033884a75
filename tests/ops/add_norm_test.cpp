// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/add_norm.h"

#include <limits>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "fleet/memory/recompute.h"
#include "fleet/ops/dropout.h"

#include "tests/ops/agreement.h"
#include "tests/support/error_of.h"

namespace fleet::ops {
namespace {

using testing::kCounter;
using testing::Tensors;
using torch::Tensor;

// x, residual, weight, bias
Tensors norm_arguments(const std::vector<int64_t>& sizes, double least_weight = 0.5) {
  torch::manual_seed(21);
  const int64_t width = sizes.back();
  return {torch::randn(sizes, torch::kDouble), torch::randn(sizes, torch::kDouble),
          torch::rand({width}, torch::kDouble) + least_weight,
          torch::randn({width}, torch::kDouble) * 0.3};
}

const std::vector<std::vector<int64_t>> kShapes = {{3, 5},      {2, 4, 64}, {2, 3, 100},  {7, 3},
                                                   {1, 2, 129}, {4, 1024},  {2, 2, 4100}, {9}};

TEST(AddNormTest, IsTheFormulaWithAndWithoutDropout) {
  for (const auto& sizes : kShapes) {
    for (const double p : {0.0, 0.4}) {
      for (const bool rms : {false, true}) {
        const auto op = [&](const Tensors& x) {
          return add_norm(x[0], x[1], x[2], x[3],
                          {.dropout = p, .eps = 1e-5, .rms = rms, .counter = kCounter});
        };
        testing::expect_agreement(op, norm_arguments(sizes), 2e-5);
      }
    }
  }
}

TEST(AddNormTest, WorksInBfloat16) {
  for (const bool rms : {false, true}) {
    const auto op = [&](const Tensors& x) {
      return add_norm(x[0], x[1], x[2], x[3], {.dropout = 0.3, .rms = rms, .counter = kCounter});
    };
    testing::expect_agreement(op, norm_arguments({4, 6, 96}), 3e-2, torch::kBFloat16);
  }
}

TEST(AddNormTest, NeedsNeitherResidualNorParameters) {
  const auto arguments = norm_arguments({4, 33});
  testing::expect_agreement([](const Tensors& x) { return add_norm(x[0], {}, {}, {}); },
                            {arguments[0]}, 2e-5);
  testing::expect_agreement(
      [](const Tensors& x) { return add_norm(x[0], {}, x[1], {}, {.rms = true}); },
      {arguments[0], arguments[2]}, 2e-5);
  testing::expect_agreement([](const Tensors& x) { return add_norm(x[0], x[1], {}, {}); },
                            {arguments[0], arguments[1]}, 2e-5);
}

// From the result alone, weights near zero would lose what was normalised.
TEST(AddNormTest, KeepsTheSumWhereAWeightIsSmall) {
  auto arguments = norm_arguments({5, 40});
  arguments[2][3] = 0;
  arguments[2][7] = 1e-6;
  arguments[3][9] = 1e4;
  const auto op = [&](const Tensors& x) { return add_norm(x[0], x[1], x[2], x[3]); };
  const auto got = testing::results_of(op, arguments, torch::kFloat);
  const auto expected = testing::results_of(op, arguments, torch::kDouble);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_LE(testing::relative_error(got.gradients[i], expected.gradients[i]), 2e-5) << i;
  }
}

TEST(AddNormTest, MaskIsThatOfDropout) {
  const auto arguments = norm_arguments({6, 3, 50});
  const auto x = arguments[0].to(torch::kFloat), residual = arguments[1].to(torch::kFloat);
  const auto fused = add_norm(x, residual, {}, {}, {.dropout = 0.5, .counter = kCounter});
  const auto parts = torch::layer_norm(dropout(x, 0.5, kCounter) + residual, {50});
  EXPECT_LE(testing::relative_error(fused, parts), 1e-5);
}

TEST(AddNormTest, ResultHasTheResidualsType) {
  const auto arguments = norm_arguments({6, 50});
  const auto x = arguments[0].to(torch::kBFloat16).requires_grad_();
  const auto residual = arguments[1].to(torch::kFloat).requires_grad_();
  const auto y = add_norm(x, residual, {}, {}, {.dropout = 0.2, .counter = kCounter});
  EXPECT_EQ(y.scalar_type(), torch::kFloat);
  const auto parts =
      torch::layer_norm(dropout(x.to(torch::kFloat), 0.2, kCounter) + residual, {50});
  EXPECT_LE(testing::relative_error(y, parts), 1e-5);
  y.square().sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), torch::kBFloat16);
  EXPECT_EQ(residual.grad().scalar_type(), torch::kFloat);
}

TEST(AddNormTest, AgreesWithLibTorchOnNanAndEmptyTensors) {
  auto x = norm_arguments({3, 8})[0].to(torch::kFloat);
  x[1][2] = std::numeric_limits<float>::quiet_NaN();
  const auto y = add_norm(x, {}, {}, {}), expected = torch::layer_norm(x, {8});
  EXPECT_TRUE(y.isnan().equal(expected.isnan()));
  EXPECT_EQ(add_norm(torch::empty({0, 8}), torch::empty({0, 8}), {}, {}).numel(), 0);
}

TEST(AddNormTest, RecomputedIsPlain) {
  const auto arguments = norm_arguments({4, 6, 64});
  Tensors leaves;
  for (const auto& a : arguments) leaves.push_back(a.to(torch::kFloat).requires_grad_());
  const auto run = [&](bool recomputed) {
    torch::manual_seed(8);
    const auto layers = [&] {
      auto y = add_norm(leaves[0], leaves[1], leaves[2], leaves[3], {.dropout = 0.3});
      return add_norm(y * 2, y, leaves[2], leaves[3], {.dropout = 0.3}).exp();
    };
    const auto y = recomputed ? recompute(layers) : layers();
    return torch::autograd::grad({y.sum()}, leaves);
  };
  const auto plain = run(false), recomputed = run(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(recomputed[i])) << i;
}

TEST(AddNormTest, RefusesShapesThatDoNotFit) {
  const auto text = testing::error_message_of([] {
    add_norm(torch::ones({2, 3}), torch::ones({2, 4}), {}, {});
  });
  EXPECT_NE(text.find("x is [2, 3] and the residual [2, 4]"), std::string::npos) << text;
}

TEST(AddNormTest, HasShapesOnMeta) {
  const auto x = torch::empty({4, 5, 8}, torch::kMeta).requires_grad_();
  const auto w = torch::empty({8}, torch::kMeta).requires_grad_();
  const auto y = add_norm(x, torch::empty({4, 5, 8}, torch::kMeta), w, {}, {.dropout = 0.1});
  EXPECT_EQ(y.sizes(), x.sizes());
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(w.grad().sizes(), w.sizes());
}

}  // namespace
}  // namespace fleet::ops
