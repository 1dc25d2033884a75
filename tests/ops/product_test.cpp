// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/product.h"

#include <random>

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/autograd.h>

#include "fleet/ops/fast_ops.h"
#include "fleet/ops/kernels/layer_kernels.h"
#include "fleet/ops/packed_linear.h"
#include "fleet/ops/packed_matmul.h"
#include "fleet/precision/autocast.h"

#include "tests/ops/agreement.h"

namespace fleet::ops {
namespace {

using testing::relative_error;
using testing::Tensors;
using torch::Tensor;

class ProductTest : public ::testing::Test {
 protected:
  ProductTest() {
    torch::manual_seed(4);
    if (layer_kernels().product == nullptr) return;
    set_product_source(ProductSource::kFleet);
  }
  ~ProductTest() override { set_product_source(ProductSource::kMeasured); }
  void SetUp() override {
    if (layer_kernels().product == nullptr) GTEST_SKIP() << "no kernel for this instruction set";
  }

  // rows x columns, stored by rows or by columns, each with `gap` elements between.
  static Tensor matrix(int64_t rows, int64_t columns, bool by_columns, int64_t gap) {
    return by_columns ? torch::randn({columns, rows + gap}).narrow(1, 0, rows).t()
                      : torch::randn({rows, columns + gap}).narrow(1, 0, columns);
  }
};

TEST_F(ProductTest, IsLibTorchsInDouble) {
  std::mt19937 random(9);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  for (int i = 0; i < 120; ++i) {
    int64_t m = pick(32, 420), n = pick(32, 150);
    const int64_t k = std::max<int64_t>(pick(32, 700), ((1 << 20) + m * n - 1) / (m * n));
    const auto a = matrix(m, k, pick(0, 1) == 1, pick(0, 3));
    const auto b = matrix(k, n, pick(0, 1) == 1, pick(0, 3));
    const auto bias = pick(0, 1) == 1 ? torch::randn({n}) : Tensor();
    auto expected = at::mm(a.to(torch::kDouble), b.to(torch::kDouble));
    if (bias.defined()) expected += bias;
    ASSERT_TRUE(has_product(a, b.t()));
    EXPECT_LE(relative_error(product(a, b, bias), expected), 1e-6) << m << " " << k << " " << n;
    const auto sums = matrix(m, n, false, pick(0, 3));
    const auto sum = sums.to(torch::kDouble) + at::mm(a.to(torch::kDouble), b.to(torch::kDouble));
    product_into(sums, a, b, /*adds=*/true);
    EXPECT_LE(relative_error(sums, sum), 1e-6) << m << " " << k << " " << n;
  }
}

// More columns than are packed at a time.
TEST_F(ProductTest, SlabsOfColumnsAreOne) {
  const auto a = torch::randn({40, 3000}), b = torch::randn({3000, 2900});
  EXPECT_LE(relative_error(product(a, b), at::mm(a.to(torch::kDouble), b.to(torch::kDouble))),
            1e-6);
}

TEST_F(ProductTest, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto a = torch::randn({333, 517}), b = torch::randn({517, 200});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = product(a, b);
  at::set_num_threads(3);
  const auto three = product(a, b);
  at::set_num_threads(threads);
  EXPECT_TRUE(one.equal(three));
}

// Neither zeros beside an edge nor infinities beyond it get into a result.
TEST_F(ProductTest, NanAndInfinityStayInTheirRowsAndColumns) {
  auto a = torch::ones({130, 300}), b = torch::ones({300, 70});
  a[129][299] = std::numeric_limits<float>::quiet_NaN();
  b[0][69] = std::numeric_limits<float>::infinity();
  const auto c = product(a, b);
  EXPECT_TRUE(c.equal(at::mm(a, b)) || c.isnan().equal(at::mm(a, b).isnan()));
  EXPECT_EQ(c.isnan().sum().item<int64_t>(), 70);
  EXPECT_EQ(c.isinf().sum().item<int64_t>(), 129);
}

TEST_F(ProductTest, WhatIsSmallOrOfAnotherTypeIsLibTorchs) {
  const auto check = [](const Tensor& a, const Tensor& b) {
    EXPECT_FALSE(has_product(a, b.t()));
    EXPECT_TRUE(product(a, b).equal(at::mm(a, b)));
  };
  check(torch::randn({8, 1024}), torch::randn({1024, 1024}));
  check(torch::randn({0, 64}), torch::randn({64, 64}));
  check(torch::randn({128, 0}), torch::randn({0, 128}));
  check(torch::randn({128, 128}, torch::kDouble), torch::randn({128, 128}, torch::kDouble));
  check(torch::randn({128, 128}).to(torch::kBFloat16),
        torch::randn({128, 128}).to(torch::kBFloat16));
  set_product_source(ProductSource::kLibTorch);
  check(torch::randn({128, 128}), torch::randn({128, 128}));
}

TEST_F(ProductTest, IsMeasuredAgainstLibTorchs) {
  const double speedup = product_speedup();
  EXPECT_GT(speedup, 0.1);
  EXPECT_LT(speedup, 100);
  set_product_source(ProductSource::kMeasured);
  EXPECT_EQ(has_product(torch::ones({128, 128}), torch::ones({128, 128})), speedup >= 1.2);
}

TEST_F(ProductTest, LinearLayerIsLibTorchs) {
  const Tensors arguments = {torch::randn({4, 60, 130}, torch::kDouble),
                             torch::randn({70, 130}, torch::kDouble),
                             torch::randn({70}, torch::kDouble)};
  const auto own = [](const Tensors& t) {
    EXPECT_EQ(has_packed_linear(t[0], t[1]), t[0].scalar_type() == torch::kFloat);
    return packed_linear(t[0], t[1], t.size() > 2 ? t[2] : Tensor());
  };
  testing::expect_agreement(own, arguments, 2e-6);
  testing::expect_agreement(own, {arguments[0], arguments[1]}, 2e-6);
  // The weight as the transpose of a matrix, an input with gaps.
  testing::expect_agreement(own, {arguments[0].transpose(0, 1), arguments[1].t().contiguous().t()},
                            2e-6);
}

TEST_F(ProductTest, LinearLayerKeepsWhatItsGradientsRead) {
  const auto x = torch::randn({128, 128}), weight = torch::randn({128, 128});
  EXPECT_FALSE(packed_linear(x, weight).requires_grad());
  const auto learns = weight.clone().requires_grad_();
  const auto y = packed_linear(x, learns);
  y.sum().backward();
  EXPECT_LE(relative_error(learns.grad(), x.sum(0).expand({128, 128})), 2e-6);
}

TEST_F(ProductTest, LinearLayerHasGradientsOfGradients) {
  const auto run = [](const auto& linear, torch::ScalarType type) {
    torch::manual_seed(8);
    const auto x = torch::randn({128, 128}, torch::kDouble).to(type).requires_grad_();
    const auto weight = torch::randn({128, 128}, torch::kDouble).to(type).requires_grad_();
    const auto y = linear(x, weight).tanh().sum();
    const auto dx = torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({dx.square().sum()}, {weight})[0];
  };
  const auto own =
      run([](const Tensor& x, const Tensor& w) { return packed_linear(x, w); }, torch::kFloat);
  const auto exact =
      run([](const Tensor& x, const Tensor& w) { return torch::linear(x, w); }, torch::kDouble);
  EXPECT_LE(relative_error(own, exact), 1e-5);
}

TEST_F(ProductTest, PairsOfMatricesAreLibTorchs) {
  const auto own = [](const Tensors& t) {
    EXPECT_EQ(has_packed_matmul(t[0], t[1]), t[0].scalar_type() == torch::kFloat);
    return packed_matmul(t[0], t[1]);
  };
  const auto q = torch::randn({3, 70, 5, 64}, torch::kDouble);
  const auto k = torch::randn({3, 45, 5, 64}, torch::kDouble);
  testing::expect_agreement(own, {q.transpose(1, 2), k.permute({0, 2, 3, 1})}, 2e-6);
  testing::expect_agreement(
      own, {torch::randn({8, 64, 48}, torch::kDouble), torch::randn({8, 48, 67}, torch::kDouble)},
      2e-6);
  // Shared by all heads, and with gaps.
  testing::expect_agreement(
      [](const Tensors& t) {
        const auto shared = t[1].unsqueeze(1).expand({3, 4, 64, 96}).slice(-1, 0, 96, 2);
        EXPECT_EQ(has_packed_matmul(t[0], shared), t[0].scalar_type() == torch::kFloat);
        return packed_matmul(t[0], shared);
      },
      {torch::randn({3, 4, 80, 64}, torch::kDouble), torch::randn({3, 64, 96}, torch::kDouble)},
      2e-6);
  EXPECT_FALSE(has_packed_matmul(torch::randn({0, 64, 64}), torch::randn({0, 64, 64})));
  EXPECT_FALSE(has_packed_matmul(torch::randn({8, 64, 64}), torch::randn({64, 64})));
  EXPECT_FALSE(has_packed_matmul(torch::randn({8, 64, 64}), torch::randn({1, 64, 64})));
}

TEST_F(ProductTest, PairsOfMatricesHaveGradientsOfGradients) {
  const auto run = [](const auto& matmul, torch::ScalarType type) {
    torch::manual_seed(8);
    const auto a = torch::randn({8, 64, 64}, torch::kDouble).to(type).requires_grad_();
    const auto b = torch::randn({8, 64, 64}, torch::kDouble).to(type).requires_grad_();
    const auto y = matmul(a, b).tanh().sum();
    const auto da = torch::autograd::grad({y}, {a}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({da.square().sum()}, {b})[0];
  };
  const auto own =
      run([](const Tensor& a, const Tensor& b) { return packed_matmul(a, b); }, torch::kFloat);
  const auto exact =
      run([](const Tensor& a, const Tensor& b) { return at::matmul(a, b); }, torch::kDouble);
  EXPECT_LE(relative_error(own, exact), 1e-5);
}

TEST_F(ProductTest, FastOpsReplaceProductsOfHeads) {
  const auto q = torch::randn({2, 4, 64, 64}).requires_grad_();
  const auto k = torch::randn({2, 4, 64, 64});
  FastOps fast;
  Tensor w, y, z;
  {
    const FastOpsScope scope(fast);
    y = at::matmul(q, k.transpose(-2, -1));
    z = at::bmm(q.flatten(0, 1), k.flatten(0, 1));
    w = at::matmul(q, k[0][0]);
    (void)at::matmul(q, k[0]);  // leading sizes that differ are LibTorch's
  }
  EXPECT_EQ(fast.summary(), "1 bmm, 2 matmul by Fleet's ops");
  EXPECT_LE(relative_error(w, at::matmul(q, k[0][0])), 2e-6);
  EXPECT_LE(relative_error(y, at::matmul(q, k.transpose(-2, -1))), 2e-6);
  EXPECT_LE(relative_error(z, at::bmm(q.flatten(0, 1), k.flatten(0, 1))), 2e-6);
}

TEST_F(ProductTest, AutocastsProductsAreLibTorchs) {
  const auto x = torch::randn({128, 128}), weight = torch::randn({128, 128});
  const precision::Autocast autocast(precision::AutocastOptions{.dtype = torch::kBFloat16});
  const precision::AutocastScope scope(autocast);
  EXPECT_FALSE(has_packed_linear(x, weight));
  EXPECT_TRUE(packed_linear(x, weight).equal(torch::linear(x, weight)));
}

TEST_F(ProductTest, FastOpsReplaceLinearLayers) {
  const auto x = torch::randn({2, 64, 128}).requires_grad_();
  const auto weight = torch::randn({96, 128}).requires_grad_();
  const auto bias = torch::randn({96}).requires_grad_();
  const auto columns = torch::randn({128, 96}).requires_grad_();
  FastOps fast;
  Tensor y, z, small, no_bias;
  {
    const FastOpsScope scope(fast);
    y = torch::linear(x, weight, bias);
    z = at::addmm(bias, x.flatten(0, 1), columns);
    small = at::addmm(bias, x.flatten(0, 1), columns, /*beta=*/0.5);
    no_bias = at::matmul(x, weight.t());
    (void)torch::linear(x[0].narrow(0, 0, 8), weight, bias);
  }
  EXPECT_EQ(fast.summary(), "1 linear, 1 addmm, 1 matmul by Fleet's ops");
  EXPECT_LE(relative_error(y, torch::linear(x, weight, bias)), 2e-6);
  EXPECT_LE(relative_error(z, at::addmm(bias, x.flatten(0, 1), columns)), 2e-6);
  EXPECT_LE(relative_error(no_bias, at::matmul(x, weight.t())), 2e-6);
  no_bias.sum().backward();
  EXPECT_EQ(weight.grad().strides(), weight.strides());
  EXPECT_LE(relative_error(weight.grad(), x.detach().flatten(0, 1).sum(0).expand({96, 128})), 2e-6);
  z.sum().backward();
  EXPECT_EQ(columns.grad().strides(), columns.strides());
  EXPECT_LE(relative_error(columns.grad(),
                           x.detach().flatten(0, 1).sum(0).unsqueeze(1).expand({128, 96})),
            2e-6);
}

}  // namespace
}  // namespace fleet::ops
