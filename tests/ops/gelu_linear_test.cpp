// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/gelu_linear.h"

#include <ATen/ops/linear.h>

#include "fleet/core/error.h"
#include "fleet/precision/autocast.h"

#include "tests/ops/agreement.h"
#include "tests/support/error_of.h"

namespace fleet::ops {
namespace {

using testing::Tensors;
using torch::Tensor;

Tensors arguments_of(c10::IntArrayRef sizes, int64_t out) {
  const int64_t width = sizes.back();
  return {torch::randn(sizes, torch::kDouble), torch::randn({width}, torch::kDouble),
          torch::randn({out, width}, torch::kDouble) * 0.3, torch::randn({out}, torch::kDouble)};
}

TEST(GeluLinearTest, IsTheFormula) {
  torch::manual_seed(1);
  for (const double p : {0.0, 0.3}) {
    for (const bool tanh : {false, true}) {
      const BiasGeluOptions options{.dropout = p, .tanh = tanh, .counter = testing::kCounter};
      const auto op = [&](const Tensors& x) {
        return gelu_linear(x[0], x[1], x[2], x[3], options);
      };
      testing::expect_agreement(op, arguments_of({3, 5, 70}, 33), 5e-6, torch::kFloat, true);
      testing::expect_agreement(op, arguments_of({3, 5, 70}, 33), 3e-2, torch::kBFloat16, true);
      testing::expect_agreement(op, arguments_of({0, 5, 70}, 33), 5e-6);
    }
  }
}

TEST(GeluLinearTest, HasTheBitsOfItsParts) {
  torch::manual_seed(2);
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    const auto run = [&](bool fused) {
      torch::manual_seed(3);
      Tensors leaves;
      for (const auto& x : arguments_of({4, 9, 96}, 40)) {
        leaves.push_back(x.to(type).set_requires_grad(true));
      }
      const BiasGeluOptions options{.dropout = 0.2, .counter = testing::kCounter};
      auto y = fused
                   ? gelu_linear(leaves[0], leaves[1], leaves[2], leaves[3], options)
                   : torch::linear(bias_gelu(leaves[0], leaves[1], options), leaves[2], leaves[3]);
      y.square().sum().backward();
      Tensors results = {y.detach()};
      for (const auto& leaf : leaves) results.push_back(leaf.grad());
      return results;
    };
    const auto fused = run(true), parts = run(false);
    for (size_t i = 0; i < fused.size(); ++i) EXPECT_TRUE(fused[i].equal(parts[i])) << i;
  }
}

TEST(GeluLinearTest, MissingBiasesAndFrozenWeights) {
  torch::manual_seed(4);
  const auto a = arguments_of({2, 6, 32}, 8);
  testing::expect_agreement(
      [&](const Tensors& x) { return gelu_linear(x[0], {}, a[2].to(x[0].scalar_type()), {}, {}); },
      {a[0]}, 5e-6);
}

TEST(GeluLinearTest, RunsInAutocastsType) {
  torch::manual_seed(5);
  Tensors leaves;
  for (const auto& x : arguments_of({2, 6, 32}, 8)) {
    leaves.push_back(x.to(torch::kFloat).set_requires_grad(true));
  }
  const precision::Autocast autocast(precision::AutocastOptions{.dtype = torch::kBFloat16});
  Tensor y;
  {
    const precision::AutocastScope scope(autocast);
    y = gelu_linear(leaves[0], leaves[1], leaves[2], leaves[3]);
  }
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  y.to(torch::kFloat).sum().backward();
  for (const auto& leaf : leaves) {
    ASSERT_TRUE(leaf.grad().defined());
    EXPECT_EQ(leaf.grad().scalar_type(), torch::kFloat);
  }
}

TEST(GeluLinearTest, AWeightOfOtherColumnsIsAnError) {
  EXPECT_EQ(testing::error_message_of([] {
              gelu_linear(torch::ones({2, 8}), {}, torch::ones({4, 7}), {});
            }),
            "[gelu_linear] x is [2, 8], and the weight [4, 7]: it must have a column for each "
            "element of the last dimension");
}

}  // namespace
}  // namespace fleet::ops
