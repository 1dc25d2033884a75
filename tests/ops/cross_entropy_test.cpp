// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/cross_entropy.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "fleet/core/error.h"

#include "tests/ops/agreement.h"
#include "tests/support/error_of.h"
#include "tests/support/says.h"

namespace fleet::ops {
namespace {

using testing::error_message_of;
using testing::Tensors;
using torch::Tensor;
using Reduction = CrossEntropyOptions::Reduction;

Tensor labels_of(int64_t rows, int64_t classes, int64_t ignored) {
  auto labels = torch::randint(classes, {rows}, torch::kLong);
  for (int64_t i = 0; i < rows; i += 3) labels[i] = ignored;
  return labels;
}

TEST(CrossEntropyTest, AgreesWithLibTorchInDouble) {
  torch::manual_seed(1);
  for (const int64_t classes : {2, 7, 64, 1003}) {
    const auto logits = torch::randn({5, classes}, torch::kDouble) * 3;
    for (const auto reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
      for (const double smoothing : {0.0, 0.1}) {
        const auto labels = labels_of(5, classes, -7);
        const CrossEntropyOptions options{
            .reduction = reduction, .ignore_index = -7, .label_smoothing = smoothing};
        testing::expect_agreement(
            [&](const Tensors& x) { return cross_entropy(x[0], labels, options); }, {logits}, 2e-6);
      }
    }
  }
}

TEST(CrossEntropyTest, Bfloat16HasALossInFloat) {
  torch::manual_seed(2);
  const auto logits = torch::randn({9, 133}).to(torch::kBFloat16).requires_grad_();
  const auto labels = labels_of(9, 133, -100);
  const auto loss = cross_entropy(logits, labels);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat);
  const auto exact = logits.detach().to(torch::kDouble).requires_grad_();
  const auto expected = at::cross_entropy_loss(exact, labels);
  EXPECT_LE(testing::relative_error(loss, expected), 1e-6);
  const auto gradient = torch::autograd::grad({loss}, {logits})[0];
  EXPECT_EQ(gradient.scalar_type(), torch::kBFloat16);
  EXPECT_LE(testing::relative_error(gradient, torch::autograd::grad({expected}, {exact})[0]), 1e-2);
}

TEST(CrossEntropyTest, WithoutALabelThatCountsTheMeanIsNoNumberAndTheGradientZero) {
  const auto logits = torch::randn({2, 5}).requires_grad_();
  const auto labels = torch::full({2}, -100, torch::kLong);
  const auto loss = cross_entropy(logits, labels);
  EXPECT_TRUE(loss.isnan().item<bool>());
  EXPECT_TRUE(torch::equal(torch::autograd::grad({loss}, {logits})[0], torch::zeros({2, 5})));
}

TEST(CrossEntropyTest, RefusesLabelsThatAreNoClass) {
  const auto logits = torch::randn({2, 5});
  EXPECT_TRUE(says(error_message_of([&] {
                     cross_entropy(logits, torch::tensor({1, 5}));
                   }),
                   "label 5 in row 1 is outside of the 5 classes"));
  EXPECT_TRUE(says(error_message_of([&] { cross_entropy(logits, torch::tensor({1})); }),
                   "logits are [2, 5], labels [1] of Long"));
}

TEST(CrossEntropyTest, RefusesAGradientOfItsGradient) {
  const auto logits = torch::randn({2, 5}).requires_grad_();
  const auto loss = cross_entropy(logits, torch::tensor({1, 2}));
  EXPECT_TRUE(says(error_message_of([&] {
                     torch::autograd::grad({loss}, {logits}, {}, /*retain_graph=*/true,
                                           /*create_graph=*/true);
                   }),
                   "no gradient of a gradient"));
}

TEST(CrossEntropyTest, MetaHasTheShapesOfTheCpu) {
  const auto logits = torch::randn({4, 6}).to(torch::kMeta).requires_grad_();
  const auto labels = torch::zeros({4}, torch::kLong).to(torch::kMeta);
  const auto loss = cross_entropy(logits, labels, {.reduction = Reduction::kNone});
  EXPECT_EQ(loss.sizes(), c10::IntArrayRef({4}));
  EXPECT_EQ(torch::autograd::grad({loss.sum()}, {logits})[0].sizes(), c10::IntArrayRef({4, 6}));
}

}  // namespace
}  // namespace fleet::ops
