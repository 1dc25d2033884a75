// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/rotary.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/ops/agreement.h"
#include "tests/support/error_of.h"

namespace fleet::ops {
namespace {

using testing::Tensors;

TEST(RotaryTest, IsTheFormulaForwardAndBackward) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {2, 5, 3, 8}, {1, 70, 2, 64}, {3, 4, 1, 6}, {2, 0, 3, 8}, {1, 1, 1, 2}}) {
    torch::manual_seed(71);
    const auto table = RotaryTable::of(sizes[1] + 3, sizes[3]);
    const auto op = [&](const Tensors& x) { return rotary(x[0], table); };
    const auto x = torch::randn(sizes, torch::kDouble);
    testing::expect_agreement(op, {x}, 1e-6);
    testing::expect_agreement(op, {x}, 1e-2, torch::kBFloat16);
  }
}

TEST(RotaryTest, TurnsEachPairByItsAngle) {
  const auto table = RotaryTable::of(4, 4, 100);
  const auto y = rotary(torch::tensor({1.0f, 2.0f, 3.0f, 4.0f}).expand({1, 4, 1, 4}), table);
  const double angle = 3 * std::pow(100.0, -0.5);  // position 3, pair 1: elements 1 and 3
  EXPECT_NEAR(y[0][3][0][1].item<double>(), 2 * std::cos(angle) - 4 * std::sin(angle), 1e-6);
  EXPECT_NEAR(y[0][3][0][3].item<double>(), 4 * std::cos(angle) + 2 * std::sin(angle), 1e-6);
}

// Which is why it is used: only the distance of two positions matters.
TEST(RotaryTest, ProductsDependOnTheDistanceAlone) {
  torch::manual_seed(72);
  const auto table = RotaryTable::of(20, 16);
  const auto turned = [&](const torch::Tensor& x) {
    return rotary(x.expand({1, 20, 1, 16}), table).squeeze();
  };
  const auto q = turned(torch::randn({16})), k = turned(torch::randn({16}));
  const auto products = torch::matmul(q, k.t());
  EXPECT_NEAR(products[3][1].item<double>(), products[19][17].item<double>(), 1e-4);
}

TEST(RotaryTest, TakesViewsAndRefusesATableThatIsTooShort) {
  torch::manual_seed(73);
  const auto x = torch::randn({2, 3, 7, 8});
  const auto table = RotaryTable::of(7, 8);
  const auto view = x.transpose(1, 2);
  EXPECT_TRUE(rotary(view, table).equal(rotary(view.contiguous(), table)));
  EXPECT_NE(testing::error_message_of([&] { rotary(view, RotaryTable::of(6, 8)); }).find("table"),
            std::string::npos);
}

}  // namespace
}  // namespace fleet::ops
