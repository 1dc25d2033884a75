// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/bias_gelu.h"

#include <limits>

#include <gtest/gtest.h>

#include "fleet/memory/recompute.h"
#include "fleet/ops/dropout.h"

#include "tests/ops/agreement.h"

namespace fleet::ops {
namespace {

using testing::kCounter;
using testing::Tensors;
using torch::Tensor;

TEST(BiasGeluTest, IsTheFormulaWithAndWithoutDropout) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {3, 5}, {2, 4, 64}, {2, 3, 100}, {7, 1}, {1, 2, 4097}, {6}}) {
    for (const double p : {0.0, 0.4}) {
      for (const bool tanh : {false, true}) {
        const auto op = [&](const Tensors& x) {
          return bias_gelu(x[0], x[1], {.dropout = p, .tanh = tanh, .counter = kCounter});
        };
        torch::manual_seed(31);
        const Tensors arguments = {torch::randn(sizes, torch::kDouble) * 3,
                                   torch::randn({sizes.back()}, torch::kDouble)};
        testing::expect_agreement(op, arguments, 5e-6);
        testing::expect_agreement(op, arguments, 2e-2, torch::kBFloat16);
      }
    }
  }
}

TEST(BiasGeluTest, AgreesWithLibTorchOverTheWholeRange) {
  const auto x = torch::linspace(-30, 30, 60001);
  for (const bool tanh : {false, true}) {
    const auto got = bias_gelu(x, {}, {.tanh = tanh});
    const auto expected = torch::gelu(x.to(torch::kDouble), tanh ? "tanh" : "none");
    EXPECT_LE((got.to(torch::kDouble) - expected).abs().max().item<double>(), 2e-6) << tanh;
  }
  const float inf = std::numeric_limits<float>::infinity();
  const auto edges =
      torch::tensor({inf, -inf, std::numeric_limits<float>::quiet_NaN(), 0.0f, 1e30f});
  const auto got = bias_gelu(edges, {});
  EXPECT_EQ(got[0].item<float>(), inf);
  EXPECT_TRUE(got[2].isnan().item<bool>());
  EXPECT_EQ(got[3].item<float>(), 0);
  EXPECT_EQ(got[4].item<float>(), 1e30f);
}

TEST(BiasGeluTest, SmallResultsAreAsPreciseAsLargeOnes) {
  const auto x = torch::linspace(-6, 6, 60000);
  const auto expected = torch::gelu(x.to(torch::kDouble));
  const auto error = (bias_gelu(x, {}).to(torch::kDouble) / expected - 1).abs().max();
  EXPECT_LE(error.item<double>(), 4e-6);
}

TEST(BiasGeluTest, MaskIsThatOfDropout) {
  torch::manual_seed(32);
  const auto x = torch::randn({6, 3, 50}), bias = torch::randn({50});
  EXPECT_LE(testing::relative_error(bias_gelu(x, bias, {.dropout = 0.5, .counter = kCounter}),
                                    dropout(torch::gelu(x + bias), 0.5, kCounter)),
            2e-6);
}

TEST(BiasGeluTest, RecomputedIsPlain) {
  torch::manual_seed(33);
  const auto x = torch::randn({6, 3, 50}).requires_grad_();
  const auto run = [&](bool recomputed) {
    torch::manual_seed(34);
    const auto layers = [&] { return bias_gelu(x * 2, {}, {.dropout = 0.5}).exp(); };
    x.mutable_grad() = Tensor();
    (recomputed ? recompute(layers) : layers()).sum().backward();
    return x.grad().clone();
  };
  EXPECT_TRUE(run(false).equal(run(true)));
}

TEST(BiasGeluTest, HasShapesOnMetaAndTakesEmptyTensors) {
  const auto x = torch::empty({4, 8}, torch::kMeta).requires_grad_();
  bias_gelu(x, torch::empty({8}, torch::kMeta), {.dropout = 0.1}).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  const auto none = torch::empty({0, 8}).requires_grad_();
  bias_gelu(none, torch::ones({8})).sum().backward();
  EXPECT_EQ(none.grad().numel(), 0);
}

}  // namespace
}  // namespace fleet::ops
