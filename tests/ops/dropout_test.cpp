// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/dropout.h"

#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "fleet/memory/recompute.h"

#include "tests/ops/agreement.h"

namespace fleet::ops {
namespace {

using testing::kCounter;
using testing::Tensors;
using torch::Tensor;

TEST(DropoutTest, DropsTheShareAndScalesTheRest) {
  const auto y = dropout(torch::ones({64, 33, 17}), 0.25, kCounter);
  EXPECT_NEAR(y.mean().item<double>(), 1, 0.01);
  EXPECT_NEAR(y.eq(0).to(torch::kDouble).mean().item<double>(), 0.25, 0.01);
  EXPECT_NEAR(y.max().item<double>(), 1 / 0.75, 1e-4);
}

TEST(DropoutTest, IsTheSameInEveryTypeForwardAndBackward) {
  const auto op = [](const Tensors& x) { return dropout(x[0], 0.4, kCounter); };
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {3, 5}, {2, 64}, {4, 7, 129}, {1}, {5, 1}, {2, 3, 4, 65}, {0, 4}, {3, 0}}) {
    torch::manual_seed(1);
    const auto x = torch::randn(sizes, torch::kDouble);
    testing::expect_agreement(op, {x}, 1e-6);
    testing::expect_agreement(op, {x}, 1e-2, torch::kBFloat16);
  }
}

TEST(DropoutTest, GradientIsThatOfFiniteDifferences) {
  // Linear in x: one step in a direction says all.
  torch::manual_seed(2);
  const auto x = torch::randn({3, 40}, torch::kDouble).requires_grad_();
  const auto direction = torch::randn_like(x);
  dropout(x, 0.3, kCounter).square().sum().backward();
  const auto at = [&](double step) {
    return dropout(x.detach() + step * direction, 0.3, kCounter).square().sum().item<double>();
  };
  const double slope = (at(1e-4) - at(-1e-4)) / 2e-4;
  EXPECT_NEAR((x.grad() * direction).sum().item<double>(), slope, 1e-6 * std::abs(slope) + 1e-8);
}

TEST(DropoutTest, MaskIsTheSameForMicroBatchesAndThreads) {
  torch::manual_seed(3);
  const auto x = torch::randn({16, 10, 70});
  const auto whole = dropout(x, 0.1, kCounter);
  Tensors parts;
  for (int64_t i = 0; i < 16; i += 4) {
    auto counter = kCounter;
    counter[3] += i;
    parts.push_back(dropout(x.slice(0, i, i + 4), 0.1, counter));
  }
  EXPECT_TRUE(torch::cat(parts).equal(whole));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto alone = dropout(x, 0.1, kCounter);
  at::set_num_threads(threads);
  EXPECT_TRUE(alone.equal(whole));
}

TEST(DropoutTest, TakesViewsThatAreNotContiguous) {
  torch::manual_seed(4);
  const auto x = torch::randn({8, 6, 10});
  const auto view = x.transpose(1, 2);
  EXPECT_TRUE(dropout(view, 0.5, kCounter).equal(dropout(view.contiguous(), 0.5, kCounter)));
}

TEST(DropoutTest, AtZeroAndOneAndWithNanItIsAsLibTorch) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto x = torch::tensor({1.0f, nan, std::numeric_limits<float>::infinity(), -2.0f});
  EXPECT_TRUE(dropout(x, 0.0).is_same(x));
  EXPECT_TRUE(ops::dropout(x, 0.5, /*training=*/false).is_same(x));  // at:: has one too
  const auto none = dropout(x, 1.0), expected = torch::dropout(x, 1.0, true);
  EXPECT_TRUE(none.isnan().equal(expected.isnan()));
  EXPECT_EQ(none[3].item<float>(), 0);
  // A NaN stays one, dropped or not.
  EXPECT_TRUE(dropout(torch::full({64, 64}, nan), 0.5).isnan().all().item<bool>());
}

TEST(DropoutTest, RecomputedIsPlainAndNothingIsSaved) {
  torch::manual_seed(5);
  const auto x = torch::randn({8, 100}).requires_grad_();
  const auto run = [&](bool recomputed) {
    torch::manual_seed(6);
    const auto layers = [&] { return dropout(dropout(x * 2, 0.3).exp(), 0.5).square(); };
    const auto y = recomputed ? recompute(layers) : layers();
    x.mutable_grad() = Tensor();
    y.sum().backward();
    return std::pair(y.detach().clone(), x.grad().clone());
  };
  const auto [y, dx] = run(false);
  const auto [y2, dx2] = run(true);
  EXPECT_TRUE(y.equal(y2));
  EXPECT_TRUE(dx.equal(dx2));
}

TEST(DropoutTest, HasShapesOnMeta) {
  const auto x = torch::empty({4, 5}, torch::kMeta).requires_grad_();
  const auto y = dropout(x, 0.5);
  EXPECT_EQ(y.sizes(), x.sizes());
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

}  // namespace
}  // namespace fleet::ops
