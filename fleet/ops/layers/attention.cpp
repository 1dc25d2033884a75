// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/attention.h"

#include <cmath>

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include "fleet/ops/dropout.h"
#include "fleet/ops/tiled_attention.h"

namespace fleet::ops {
namespace {

using torch::Tensor;

// Finite in bf16 too, so that a row without keys is not NaN.
constexpr double kLow = -3e38;

Tensor as_bias(const Tensor& allowed) {
  return torch::zeros(allowed.sizes(), allowed.options().dtype(torch::kFloat))
      .masked_fill_(allowed.eq(0), kLow);
}

// All N x heads x S x d.
Tensor plain(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias, double p) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  auto weights = torch::matmul(q * scale, k.transpose(-2, -1));
  if (bias.defined()) weights.add_(bias);
  weights = torch::softmax(weights, -1);
  weights = dropout(weights, p);
  return torch::matmul(weights, v);
}

Tensor fused(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
             double p) {
  if (mask.causal && !mask.keys.defined()) {
    return torch::scaled_dot_product_attention(q, k, v, {}, p, /*is_causal=*/true);
  }
  std::optional<Tensor> bias;
  if (mask.bias.defined()) bias = mask.bias.to(q.scalar_type());
  return torch::scaled_dot_product_attention(q, k, v, bias, p);
}

Tensor tiled(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
             double p) {
  TiledAttentionOptions options{.keys = mask.keys, .causal = mask.causal, .dropout = p};
  if (!mask.keys.defined() && !mask.causal) options.bias = mask.bias;
  return tiled_attention(q, k, v, options);
}

}  // namespace

AttentionMask AttentionMask::padding(const Tensor& keys) {
  if (!keys.defined()) return {};
  const auto allowed = keys.to(torch::kBool);
  return {.keys = allowed, .bias = as_bias(allowed).unsqueeze(1).unsqueeze(1)};
}

AttentionMask AttentionMask::causal_of(int64_t length, torch::Device device) {
  const auto allowed = torch::ones({length, length}, device).tril().to(torch::kBool);
  return {.causal = true, .bias = as_bias(allowed)};
}

AttentionMask AttentionMask::causal_padding(const Tensor& keys) {
  const auto mask = causal_of(keys.size(1), keys.device());
  const auto padding = AttentionMask::padding(keys);
  return {.keys = padding.keys, .causal = true, .bias = mask.bias.minimum(padding.bias)};
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionMask& mask,
                 const AttentionOptions& options, bool training) {
  const auto heads_of = [&](const Tensor& x) {
    return x.unflatten(-1, {options.heads, x.size(-1) / options.heads});
  };
  const auto split = [&](const Tensor& x) { return heads_of(x).transpose(1, 2); };
  const double p = training ? options.dropout : 0;
  const bool on_cpu = q.is_cpu() || q.is_meta();
  if (options.path == AttentionPath::kTiled || (options.path == AttentionPath::kAuto && on_cpu)) {
    return tiled(heads_of(q), heads_of(k), heads_of(v), mask, p).flatten(2);
  }
  const bool is_plain = options.path == AttentionPath::kPlain;
  const auto context = is_plain ? plain(split(q), split(k), split(v), mask.bias, p)
                                : fused(split(q), split(k), split(v), mask, p);
  return context.transpose(1, 2).flatten(2);
}

}  // namespace fleet::ops
