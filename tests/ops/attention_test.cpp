// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/attention.h"

#include <cmath>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "fleet/ops/layers/multi_head_attention.h"

namespace fleet::ops {
namespace {

using torch::Tensor;

constexpr int64_t kSamples = 2, kHeads = 3, kWidth = 12, kLength = 5;

Tensor numbers(int64_t length, int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  return torch::randn({kSamples, length, kWidth}, torch::kDouble).requires_grad_();
}

Tensor keys_with_padding() {
  return torch::tensor({1, 1, 1, 1, 1, 1, 1, 0, 0, 0}).view({kSamples, kLength});
}

// By the formula, one query, one head and one key at a time.
Tensor by_hand(const Tensor& q, const Tensor& k, const Tensor& v,
               const std::function<bool(int64_t, int64_t, int64_t)>& sees) {
  const int64_t d = kWidth / kHeads;
  auto out = torch::zeros_like(q);
  for (int64_t n = 0; n < q.size(0); ++n) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto head = [&](const Tensor& x, int64_t i) {
        return x[n][i].slice(0, h * d, (h + 1) * d);
      };
      for (int64_t i = 0; i < q.size(1); ++i) {
        double sum = 0;
        auto context = torch::zeros({d}, torch::kDouble);
        for (int64_t j = 0; j < k.size(1); ++j) {
          if (!sees(n, i, j)) continue;
          const double weight = std::exp(head(q, i).dot(head(k, j)).item<double>() /
                                         std::sqrt(static_cast<double>(d)));
          sum += weight;
          context += weight * head(v, j);
        }
        head(out, i).copy_(context / sum);
      }
    }
  }
  return out;
}

struct Masked {
  AttentionMask mask;
  std::function<bool(int64_t, int64_t, int64_t)> sees;
};

TEST(AttentionTest, IsTheFormulaOnEveryPathWithEveryMask) {
  const auto keys = keys_with_padding();
  const auto is_real = [&](int64_t n, int64_t j) { return keys[n][j].item<int64_t>() != 0; };
  const std::vector<Masked> all = {
      {{}, [](int64_t, int64_t, int64_t) { return true; }},
      {AttentionMask::padding(keys), [&](int64_t n, int64_t, int64_t j) { return is_real(n, j); }},
      {AttentionMask::causal_of(kLength, torch::kCPU),
       [](int64_t, int64_t i, int64_t j) { return j <= i; }},
      {AttentionMask::causal_padding(keys),
       [&](int64_t n, int64_t i, int64_t j) { return j <= i && is_real(n, j); }},
  };
  for (size_t m = 0; m < all.size(); ++m) {
    std::vector<Tensor> expected_gradients;
    for (const auto path : {AttentionPath::kAuto, AttentionPath::kPlain, AttentionPath::kFused}) {
      SCOPED_TRACE(::testing::Message() << "mask " << m << ", path " << static_cast<int>(path));
      const auto q = numbers(kLength, 1), k = numbers(kLength, 2), v = numbers(kLength, 3);
      const auto got = attention(q, k, v, all[m].mask, {.heads = kHeads, .path = path}, true);
      EXPECT_TRUE(torch::allclose(
          got.detach(), by_hand(q.detach(), k.detach(), v.detach(), all[m].sees), 1e-9, 1e-12));
      (got * numbers(kLength, 4).detach()).sum().backward();
      const std::vector<Tensor> gradients{q.grad(), k.grad(), v.grad()};
      if (expected_gradients.empty()) expected_gradients = gradients;
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(torch::allclose(gradients[i], expected_gradients[i], 1e-9, 1e-12)) << i;
      }
    }
  }
}

TEST(AttentionTest, TakesFewerQueriesThanKeys) {
  const auto q = numbers(2, 1).detach(), k = numbers(kLength, 2).detach(),
             v = numbers(kLength, 3).detach();
  const auto got = attention(q, k, v, {}, {.heads = kHeads}, true);
  EXPECT_TRUE(torch::allclose(got, by_hand(q, k, v, [](int64_t, int64_t, int64_t) { return true; }),
                              1e-9, 1e-12));
}

TEST(AttentionTest, MasksInBf16Too) {
  const auto low = [](const Tensor& x) { return x.detach().to(torch::kBFloat16); };
  const auto q = low(numbers(kLength, 1)), k = low(numbers(kLength, 2)),
             v = low(numbers(kLength, 3));
  auto other = v.clone();
  other[1].slice(0, 2).fill_(100);  // padding
  for (const auto path : {AttentionPath::kPlain, AttentionPath::kFused}) {
    const AttentionOptions options{.heads = kHeads, .path = path};
    const auto mask = AttentionMask::padding(keys_with_padding());
    const auto got = attention(q, k, v, mask, options, true);
    EXPECT_EQ(got.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(got.equal(attention(q, k, other, mask, options, true)));
    EXPECT_FALSE(got.equal(attention(q, k, other, {}, options, true)));
  }
}

TEST(AttentionTest, DropsWeightsOnlyInTraining) {
  torch::manual_seed(9);
  const auto q = torch::zeros({1, 400, 4}), v = torch::ones({1, 400, 4});
  for (const auto path : {AttentionPath::kPlain, AttentionPath::kFused}) {
    const AttentionOptions options{.heads = 1, .dropout = 0.5, .path = path};
    EXPECT_TRUE(torch::allclose(attention(q, q, v, {}, options, /*training=*/false), v));
    // Each result is the share of 400 weights that were kept, times two.
    const auto got = attention(q, q, v, {}, options, /*training=*/true);
    EXPECT_NEAR(got.mean().item<double>(), 1, 0.02);
    EXPECT_NEAR(got.select(2, 0).std().item<double>(), 0.05, 0.01);
  }
}

TEST(MultiHeadAttentionTest, SelfAttentionIsCrossAttentionWithItself) {
  torch::manual_seed(4);
  MultiHeadAttention layer(kWidth, AttentionOptions{.heads = kHeads});
  layer->to(torch::kDouble);
  const auto x = numbers(kLength, 5).detach();
  EXPECT_TRUE(torch::allclose(layer(x, x, AttentionMask{}), layer(x, x.clone(), AttentionMask{}),
                              1e-9, 1e-12));
}

}  // namespace
}  // namespace fleet::ops
