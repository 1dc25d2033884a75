// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/linear_cross_entropy.h"

#include <limits>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "fleet/memory/recompute.h"

#include "tests/ops/agreement.h"
#include "tests/support/error_of.h"

namespace fleet::ops {
namespace {

using testing::Tensors;
using torch::Tensor;

Tensors cross_entropy_arguments(int64_t rows, int64_t width, int64_t classes) {
  torch::manual_seed(51);
  return {torch::randn({rows, width}, torch::kDouble),
          torch::randn({classes, width}, torch::kDouble) * 0.3,
          torch::randn({classes}, torch::kDouble)};
}

Tensor some_labels(int64_t rows, int64_t classes, bool ignores) {
  torch::manual_seed(52);
  auto labels = torch::randint(classes, {rows}, torch::kLong);
  if (ignores) labels.masked_fill_(torch::rand({rows}).lt(0.4), -100);
  return labels;
}

TEST(LinearCrossEntropyTest, IsTheFormulaInChunksOfAnySize) {
  for (const auto& [rows, classes] :
       std::vector<std::pair<int64_t, int64_t>>{{10, 7}, {33, 100}, {1, 2}, {20, 1001}, {0, 5}}) {
    for (const int64_t chunk : {0, 1, 8, 32}) {
      for (const double smoothing : {0.0, 0.1}) {
        const auto labels = some_labels(rows, classes, chunk == 8);
        const auto op = [&](const Tensors& x) {
          return linear_cross_entropy(x[0], x[1], x[2], labels,
                                      {.label_smoothing = smoothing, .chunk_rows = chunk});
        };
        testing::expect_agreement(op, cross_entropy_arguments(rows, 12, classes), 1e-5);
      }
    }
  }
}

TEST(LinearCrossEntropyTest, IsLibTorchsLoss) {
  const auto x = cross_entropy_arguments(40, 16, 300);
  const auto labels = some_labels(40, 300, true);
  Tensors leaves;
  for (const auto& t : x) leaves.push_back(t.to(torch::kFloat).requires_grad_());
  const auto got = linear_cross_entropy(leaves[0], leaves[1], leaves[2], labels);
  const auto expected = torch::cross_entropy_loss(torch::linear(leaves[0], leaves[1], leaves[2]),
                                                  labels, {}, at::Reduction::Sum);
  EXPECT_LE(testing::relative_error(got, expected), 1e-6);
  // Scaled as an accumulation window scales it.
  const auto own = torch::autograd::grad({got / 17}, leaves);
  const auto theirs = torch::autograd::grad({expected / 17}, leaves);
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_LE(testing::relative_error(own[i], theirs[i]), 1e-5) << i;
  }
}

TEST(LinearCrossEntropyTest, WorksInBfloat16WithoutBias) {
  const auto labels = some_labels(40, 300, true);
  const auto op = [&](const Tensors& x) {
    return linear_cross_entropy(x[0], x[1], {}, labels, {.chunk_rows = 16}).to(x[0].scalar_type());
  };
  const auto x = cross_entropy_arguments(40, 16, 300);
  testing::expect_agreement(op, {x[0], x[1]}, 3e-2, torch::kBFloat16);
}

TEST(LinearCrossEntropyTest, WithoutGradientsItIsTheSameLoss) {
  const auto x = cross_entropy_arguments(9, 4, 30);
  const auto labels = some_labels(9, 30, false);
  const auto run = [&](bool learns) {
    const auto weight = x[1].to(torch::kFloat).set_requires_grad(learns);
    return linear_cross_entropy(x[0].to(torch::kFloat), weight, {}, labels).item<double>();
  };
  EXPECT_EQ(run(false), run(true));
}

TEST(LinearCrossEntropyTest, LabelsOutsideOfTheClassesAreAnError) {
  const auto text = testing::error_message_of([] {
    linear_cross_entropy(torch::ones({2, 3}), torch::ones({4, 3}), {},
                         torch::tensor({1, 4}, torch::kLong));
  });
  EXPECT_NE(text.find("label 4 in row 1 is outside of the 4 classes"), std::string::npos) << text;
}

TEST(LinearCrossEntropyTest, NanGivesNan) {
  auto x = torch::ones({2, 3});
  x[0][1] = std::numeric_limits<float>::quiet_NaN();
  const auto labels = torch::zeros({2}, torch::kLong);
  EXPECT_TRUE(linear_cross_entropy(x, torch::ones({4, 3}), {}, labels).isnan().item<bool>());
}

TEST(LinearCrossEntropyTest, RecomputedIsPlainAndMetaHasShapes) {
  const auto arguments = cross_entropy_arguments(9, 4, 30);
  const auto labels = some_labels(9, 30, false);
  const auto x = arguments[0].to(torch::kFloat).requires_grad_();
  const auto w = arguments[1].to(torch::kFloat).requires_grad_();
  const auto run = [&](bool recomputed) {
    const auto layers = [&] { return linear_cross_entropy(x * 2, w, {}, labels); };
    return torch::autograd::grad({recomputed ? recompute(layers) : layers()}, {x, w});
  };
  const auto plain = run(false), recomputed = run(true);
  EXPECT_TRUE(plain[0].equal(recomputed[0]));
  EXPECT_TRUE(plain[1].equal(recomputed[1]));
  const auto meta = torch::empty({9, 4}, torch::kMeta).requires_grad_();
  linear_cross_entropy(meta, torch::empty({30, 4}, torch::kMeta), {}, labels.to(torch::kMeta))
      .backward();
  EXPECT_EQ(meta.grad().sizes(), meta.sizes());
}

}  // namespace
}  // namespace fleet::ops
