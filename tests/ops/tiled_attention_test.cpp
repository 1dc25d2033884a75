// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/tiled_attention.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "fleet/core/text/format.h"
#include "fleet/memory/recompute.h"
#include "fleet/ops/kernels/layer_kernels.h"

#include "tests/ops/agreement.h"
#include "tests/support/error_of.h"

namespace fleet::ops {
namespace {

using testing::kCounter;
using testing::Tensors;
using torch::Tensor;

struct AttentionCase {
  int64_t samples = 2, queries = 5, keys = 5, heads = 2, kv_heads = 2, width = 8;
};

Tensors attention_arguments(const AttentionCase& c) {
  torch::manual_seed(41);
  const auto numbers = [&](int64_t length, int64_t heads) {
    return torch::randn({c.samples, length, heads, c.width}, torch::kDouble);
  };
  return {numbers(c.queries, c.heads), numbers(c.keys, c.kv_heads), numbers(c.keys, c.kv_heads)};
}

// The first keys of each sample, another number of each.
Tensor padding(const AttentionCase& c) {
  auto mask = torch::zeros({c.samples, c.keys}, torch::kBool);
  for (int64_t n = 0; n < c.samples; ++n) {
    mask[n].slice(0, 0, std::max<int64_t>(1, c.keys - n * c.keys / 3)).fill_(true);
  }
  return mask;
}

const AttentionCase kCases[] = {
    {},
    {.samples = 1, .queries = 64, .keys = 64, .width = 64},
    {.samples = 3, .queries = 70, .keys = 70, .heads = 4, .kv_heads = 2, .width = 16},
    {.samples = 2, .queries = 130, .keys = 130, .heads = 3, .kv_heads = 1, .width = 5},
    {.samples = 2, .queries = 3, .keys = 200, .width = 33},
    {.samples = 2, .queries = 200, .keys = 3, .width = 80},
    {.samples = 1, .queries = 1, .keys = 2, .heads = 1, .kv_heads = 1, .width = 1},
};

TEST(TiledAttentionTest, IsTheFormulaWithEveryMask) {
  for (const auto& c : kCases) {
    for (const double p : {0.0, 0.3}) {
      for (const bool causal : {false, true}) {
        for (const bool pads : {false, true}) {
          SCOPED_TRACE(format("queries {} keys {} heads {} p {} causal {} padding {}", c.queries,
                              c.keys, c.heads, p, causal, pads));
          const auto op = [&](const Tensors& x) {
            TiledAttentionOptions options{.causal = causal, .dropout = p, .counter = kCounter};
            if (pads) options.keys = padding(c);
            return tiled_attention(x[0], x[1], x[2], options);
          };
          testing::expect_agreement(op, attention_arguments(c), 1e-5);
        }
      }
    }
  }
}

TEST(TiledAttentionTest, AddsABias) {
  const AttentionCase c{.queries = 70, .keys = 90};
  torch::manual_seed(42);
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{c.samples, c.heads, c.queries, c.keys},
                                         {c.queries, c.keys},
                                         {c.samples, 1, 1, c.keys}}) {
    const auto bias = torch::randn(sizes).masked_fill(torch::rand(sizes).lt(0.2), -3e38);
    const auto op = [&](const Tensors& x) {
      return tiled_attention(
          x[0], x[1], x[2],
          {.bias = bias.to(x[0].scalar_type()), .dropout = 0.2, .counter = kCounter});
    };
    testing::expect_agreement(op, attention_arguments(c), 1e-5);
  }
}

TEST(TiledAttentionTest, WorksInBfloat16) {
  const AttentionCase c{.queries = 70, .keys = 70, .heads = 4, .kv_heads = 2, .width = 32};
  const auto op = [&](const Tensors& x) {
    return tiled_attention(
        x[0], x[1], x[2],
        {.keys = padding(c), .causal = true, .dropout = 0.2, .counter = kCounter});
  };
  testing::expect_agreement(op, attention_arguments(c), 2e-2, torch::kBFloat16);
}

TEST(TiledAttentionTest, IsLibTorchsAttention) {
  const AttentionCase c{.queries = 100, .keys = 100, .width = 64};
  const auto x = attention_arguments(c);
  const auto heads_first = [&](const Tensor& t) { return t.to(torch::kFloat).transpose(1, 2); };
  const auto expected = torch::scaled_dot_product_attention(heads_first(x[0]), heads_first(x[1]),
                                                            heads_first(x[2]), {}, 0, true)
                            .transpose(1, 2);
  const auto got = tiled_attention(x[0].to(torch::kFloat), x[1].to(torch::kFloat),
                                   x[2].to(torch::kFloat), {.causal = true});
  EXPECT_LE(testing::relative_error(got, expected), 1e-5);
}

// Queries, keys and values as one projection leaves them.
TEST(TiledAttentionTest, TakesViewsOfOneProjection) {
  torch::manual_seed(43);
  const auto joint = torch::randn({2, 70, 3, 4, 16});
  const auto part = [&](int64_t i) { return joint.select(2, i); };
  const auto got = tiled_attention(part(0), part(1), part(2));
  const auto expected =
      tiled_attention(part(0).contiguous(), part(1).contiguous(), part(2).contiguous());
  EXPECT_TRUE(got.equal(expected));
}

TEST(TiledAttentionTest, MaskIsTheSameForMicroBatchesPaddingAndThreads) {
  const AttentionCase c{.samples = 8, .queries = 70, .keys = 70};
  auto x = attention_arguments(c);
  for (auto& t : x) t = t.to(torch::kFloat);
  const auto run = [&](const Tensors& t, int64_t first) {
    auto counter = kCounter;
    counter[3] += first;
    return tiled_attention(t[0], t[1], t[2], {.dropout = 0.3, .counter = counter});
  };
  const auto whole = run(x, 0);
  Tensors parts;
  for (int64_t i = 0; i < 8; i += 2) {
    const auto slice = [&](const Tensor& t) { return t.slice(0, i, i + 2); };
    parts.push_back(run({slice(x[0]), slice(x[1]), slice(x[2])}, i));
  }
  EXPECT_TRUE(torch::cat(parts).equal(whole));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto alone = run(x, 0);
  at::set_num_threads(threads);
  EXPECT_TRUE(alone.equal(whole));
  // Padding that is masked changes nothing.
  Tensors longer;
  for (const auto& t : x) longer.push_back(torch::cat({t, torch::randn({8, 90, 2, 8})}, 1));
  auto keys = torch::zeros({8, 160}, torch::kBool);
  keys.slice(1, 0, 70).fill_(true);
  const auto padded = tiled_attention(longer[0], longer[1], longer[2],
                                      {.keys = keys, .dropout = 0.3, .counter = kCounter});
  EXPECT_LE(testing::relative_error(padded.slice(1, 0, 70), whole), 1e-6);
}

TEST(TiledAttentionTest, RecomputedIsPlain) {
  auto x = attention_arguments({.queries = 70, .keys = 70});
  for (auto& t : x) t = t.to(torch::kFloat).requires_grad_();
  const auto run = [&](bool recomputed) {
    torch::manual_seed(44);
    const auto layers = [&] {
      return tiled_attention(x[0] * 2, x[1] * 2, x[2] * 2, {.dropout = 0.3}).exp();
    };
    const auto y = recomputed ? recompute(layers) : layers();
    return torch::autograd::grad({y.sum()}, x);
  };
  const auto plain = run(false), recomputed = run(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(recomputed[i])) << i;
}

TEST(TiledAttentionTest, KeysThatAreMaskedDoNotReachTheResult) {
  const AttentionCase c{.queries = 70, .keys = 70};
  auto x = attention_arguments(c);
  for (auto& t : x) t = t.to(torch::kFloat).requires_grad_();
  auto keys = torch::ones({2, 70}, torch::kBool);
  keys[0][3] = false;  // in the middle
  const auto y = tiled_attention(x[0], x[1], x[2], {.keys = keys});
  const auto gradients = torch::autograd::grad({y.square().sum()}, x);
  EXPECT_EQ(gradients[1][0][3].abs().max().item<float>(), 0);
  EXPECT_EQ(gradients[2][0][3].abs().max().item<float>(), 0);
  EXPECT_GT(gradients[2][1][3].abs().max().item<float>(), 0);
}

TEST(TiledAttentionTest, SampleWithoutKeysGetsTheMeanOfTheValues) {
  const auto x = attention_arguments({});
  auto keys = torch::ones({2, 5}, torch::kBool);
  keys[1].fill_(false);
  const auto v = x[2].to(torch::kFloat);
  const auto y = tiled_attention(x[0].to(torch::kFloat), x[1].to(torch::kFloat), v, {.keys = keys});
  EXPECT_LE(testing::relative_error(y[1][0], v[1].mean(0)), 1e-6);
}

TEST(TiledAttentionTest, TakesEmptyTensorsAndRefusesWhatDoesNotFit) {
  const auto none = torch::empty({0, 4, 2, 8});
  EXPECT_EQ(tiled_attention(none, none, none).sizes(), none.sizes());
  const auto text = testing::error_message_of([] {
    tiled_attention(torch::ones({1, 4, 3, 8}), torch::ones({1, 4, 2, 8}),
                    torch::ones({1, 4, 2, 8}));
  });
  EXPECT_NE(text.find("3 heads of queries are no multiple of 2"), std::string::npos) << text;
}

TEST(TiledAttentionTest, HasShapesOnMeta) {
  const auto options = torch::TensorOptions(torch::kMeta);
  const auto q = torch::empty({2, 7, 4, 8}, options).requires_grad_();
  const auto k = torch::empty({2, 9, 2, 8}, options).requires_grad_();
  const auto y = tiled_attention(q, k, k, {.dropout = 0.1});
  EXPECT_EQ(y.sizes(), q.sizes());
  y.sum().backward();
  EXPECT_EQ(k.grad().sizes(), k.sizes());
}

}  // namespace
}  // namespace fleet::ops
