// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/tiled_attention.h"

#include <cmath>

#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/attention_call.h"
#include "fleet/ops/fused_op.inl"

namespace fleet::ops {
namespace {

using AttentionOp = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                               const OptionalTensor&, const OptionalTensor&, bool,
                                               double, double, c10::IntArrayRef);
using AttentionBackwardOp = std::tuple<Tensor, Tensor, Tensor>(
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
    const OptionalTensor&, const OptionalTensor&, bool, double, double, c10::IntArrayRef);

const auto& attention_op() {
  static const auto op = fleet_op<AttentionOp>("attention");
  return op;
}
const auto& attention_backward_op() {
  static const auto op = fleet_op<AttentionBackwardOp>("attention_backward");
  return op;
}

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& keys,
                     double p) {
  std::vector<std::string> problems;
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4) {
    problems.push_back(
        format("q, k and v have {}, {} and {} dimensions, and not 4", q.dim(), k.dim(), v.dim()));
  } else {
    if (k.size(0) != q.size(0) || v.size(0) != q.size(0) || k.size(1) != v.size(1) ||
        k.size(2) != v.size(2) || k.size(3) != q.size(3)) {
      problems.push_back(format("q is {}, k is {}, v is {}", c10::str(q.sizes()),
                                c10::str(k.sizes()), c10::str(v.sizes())));
    }
    if (k.size(2) < 1 || q.size(2) % k.size(2) != 0) {
      problems.push_back(
          format("{} heads of queries are no multiple of {} of keys", q.size(2), k.size(2)));
    }
    if (keys && (keys->dim() != 2 || keys->size(0) != q.size(0) || keys->size(1) != k.size(1))) {
      problems.push_back(format("keys is {}, and not samples x keys", c10::str(keys->sizes())));
    }
    // What the counter of the mask has room for.
    if (p > 0 && (q.size(1) > (1 << 18) || k.size(1) > (1 << 17) || q.size(2) >= (1 << 16))) {
      problems.push_back("dropout takes up to 262144 queries, 131072 keys and 65535 heads");
    }
  }
  if (problems.empty()) return;
  throw Error::all("attention", "these arguments do not fit:", problems,
                   "q is N x S_q x heads x d, k and v are N x S_k x kv_heads x d");
}

bool has_attention_kernel(const Tensor& q, const Tensor& k, const Tensor& v,
                          const OptionalTensor& bias) {
  return has_kernel(q) && k.scalar_type() == q.scalar_type() &&
         v.scalar_type() == q.scalar_type() && v.size(3) == q.size(3) && q.size(3) > 0 &&
         !(bias && bias->requires_grad());
}

// N x heads x S_q x S_k, numbered as the kernels do.
Tensor attention_mask(const AttentionShape& shape, RandomStream stream) {
  auto mask = at::empty({shape.samples, shape.heads, shape.queries, shape.keys}, torch::kByte);
  auto* const bytes = mask.mutable_data_ptr<uint8_t>();
  const uint32_t site = stream.site;
  std::array<uint8_t, 64> word;
  for (int64_t n = 0; n < shape.samples; ++n) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      stream.site = site | static_cast<uint32_t>(h) << 16;
      auto* const head = bytes + (n * shape.heads + h) * shape.queries * shape.keys;
      for (int64_t j = 0; j < shape.keys; ++j) {
        for (int64_t b = 0; b < shape.blocks; ++b) {
          layer_kernels().keep_bytes(stream, static_cast<uint32_t>(n), ((b << 17) | j) * 64, 64,
                                     word.data());
          for (int64_t i = b * 64; i < std::min(shape.queries, b * 64 + 64); ++i) {
            head[i * shape.keys + j] = word[static_cast<size_t>(i % 64)];
          }
        }
      }
    }
  }
  return mask;
}

// By LibTorch's ops, for any type and device.
Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const OptionalTensor& keys, const OptionalTensor& bias, bool causal,
                       double p, double scale, c10::IntArrayRef counter) {
  constexpr double kLow = -3e38;  // finite in bf16 too
  const AttentionShape shape(q, k);
  const auto of_heads = [&](const Tensor& x) {
    const auto y = x.transpose(1, 2);
    return shape.group > 1 ? y.repeat_interleave(shape.group, 1) : y;
  };
  auto scores = at::matmul(q.transpose(1, 2) * scale, of_heads(k).transpose(-2, -1));
  if (bias) scores = scores + *bias;
  if (causal) {
    const auto seen = at::ones({shape.queries, shape.keys}, q.device()).tril().to(torch::kBool);
    scores = scores.masked_fill(seen.logical_not(), kLow);
  }
  if (keys) {
    const auto hidden = keys->to(torch::kBool).logical_not().unsqueeze(1).unsqueeze(1);
    scores = scores.masked_fill(hidden, kLow);
  }
  // A bias of minus infinity may leave a query without keys: weights of 0.
  auto weights = bias ? at::_safe_softmax(scores, -1) : at::softmax(scores, -1);
  if (p > 0 && !q.is_meta()) {
    const auto stream = random_stream(p, counter);
    const auto mask = attention_mask(shape, stream).to(weights.options());
    weights = weights * (mask * static_cast<double>(stream.scale));
  }
  return at::matmul(weights, of_heads(v)).transpose(1, 2);
}

std::tuple<Tensor, Tensor> attention_kernel(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const OptionalTensor& keys, const OptionalTensor& bias,
                                            bool causal, double p, double scale,
                                            c10::IntArrayRef counter) {
  check_attention(q, k, v, keys, p);
  if (!has_attention_kernel(q, k, v, bias)) {
    return {plain_attention(q, k, v, keys, bias, causal, p, scale, counter),
            at::empty({0}, q.options().dtype(torch::kFloat))};
  }
  const AttentionCall call(q, k, v, keys, bias, causal, p, scale, counter);
  const auto& shape = call.shape;
  auto out = at::empty({shape.samples, shape.queries, shape.heads, shape.width}, q.options());
  auto lse =
      at::empty({shape.samples, shape.heads, shape.queries}, q.options().dtype(torch::kFloat));
  if (out.numel() == 0) return {out, lse};
  if (shape.keys == 0) return {out.zero_(), lse.zero_()};
  const int64_t units = shape.samples * shape.heads;
  // A head is cut only where there are few: its keys are copied for every piece.
  const int64_t pieces =
      std::clamp<int64_t>((4 * chunk_count() + units - 1) / units, 1, shape.blocks);
  const auto kernel = layer_kernels().attention[call.kernel()];
  parallel_ranges(units * pieces, 1, [&](int64_t begin, int64_t end) {
    const auto scratch =
        aligned_floats(layer_kernels().attention_scratch[call.kernel()](shape.keys, shape.width));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t unit = i / pieces, piece = i % pieces;
      const int64_t sample = unit / shape.heads, head = unit % shape.heads;
      auto args = call.args(sample, head);
      args.out = AttentionCall::row(out, sample, head);
      args.out_stride = out.stride(1);
      args.lse = lse.mutable_data_ptr<float>() + unit * shape.queries;
      args.scratch = scratch.get();
      kernel(args, shape.blocks * piece / pieces, shape.blocks * (piece + 1) / pieces);
    }
  });
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward_kernel(
    const Tensor& dout_, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& lse, const OptionalTensor& keys, const OptionalTensor& bias, bool causal,
    double p, double scale, c10::IntArrayRef counter) {
  const AttentionCall call(q, k, v, keys, bias, causal, p, scale, counter);
  const auto& shape = call.shape;
  const auto dout = with_dense_heads(dout_.to(q.scalar_type()));
  auto dq = at::empty(q.sizes(), q.options());
  auto dk = keys ? at::zeros(k.sizes(), k.options()) : at::empty(k.sizes(), k.options());
  auto dv = keys ? at::zeros(v.sizes(), v.options()) : at::empty(v.sizes(), v.options());
  if (q.numel() == 0 || shape.keys == 0) return {dq.zero_(), dk.zero_(), dv.zero_()};
  const auto kernel = layer_kernels().attention_backward[call.kernel()];
  const int64_t padded = (shape.width + 15) / 16 * 16;
  // All queries' heads of a head of keys on one thread, which adds up its gradient.
  parallel_ranges(shape.samples * shape.kv_heads, 1, [&](int64_t begin, int64_t end) {
    const auto scratch =
        aligned_floats(layer_kernels().attention_scratch[call.kernel()](shape.keys, shape.width));
    const auto sums = aligned_floats(2 * shape.keys * padded);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / shape.kv_heads, kv_head = i % shape.kv_heads;
      std::fill_n(sums.get(), 2 * shape.keys * padded, 0.0f);
      AttentionArgs args{};
      for (int64_t head = kv_head * shape.group; head < (kv_head + 1) * shape.group; ++head) {
        args = call.args(sample, head);
        args.out = AttentionCall::row(out, sample, head);
        args.out_stride = out.stride(1);
        args.lse = const_cast<float*>(lse.const_data_ptr<float>()) +
                   (sample * shape.heads + head) * shape.queries;
        args.scratch = scratch.get();
        args.dout = AttentionCall::row(dout, sample, head);
        args.dout_stride = dout.stride(1);
        args.dq = AttentionCall::row(dq, sample, head);
        args.dq_stride = dq.stride(1);
        args.dk = sums.get();
        args.dv = sums.get() + shape.keys * padded;
        kernel(args, 0, shape.blocks);
      }
      const auto write = layer_kernels().key_rows[call.kernel()];
      write(args, args.dk, padded, AttentionCall::row(dk, sample, kv_head), dk.stride(1));
      write(args, args.dv, padded, AttentionCall::row(dv, sample, kv_head), dv.stride(1));
    }
  });
  return {dq, dk, dv};
}

std::tuple<Tensor, Tensor> attention_meta(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const OptionalTensor& keys, const OptionalTensor& bias,
                                          bool causal, double p, double scale,
                                          c10::IntArrayRef counter) {
  check_attention(q, k, v, keys, p);
  return {at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options()),
          at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(torch::kFloat))};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward_meta(
    const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& lse, const OptionalTensor& keys, const OptionalTensor& bias, bool causal,
    double p, double scale, c10::IntArrayRef counter) {
  return {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
          at::empty(v.sizes(), v.options())};
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k,
                               const Tensor& v, const OptionalTensor& keys,
                               const OptionalTensor& bias, bool causal, double p, double scale,
                               c10::IntArrayRef counter) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [out, lse] = attention_op().call(q, k, v, keys, bias, causal, p, scale, counter);
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["p"] = p;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["counter"] = counter;
    ctx->save_for_backward({q, k, v, out, lse, keys.value_or(Tensor()), bias.value_or(Tensor())});
    ctx->mark_non_differentiable({lse});
    return {out, lse};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto [dq, dk, dv] = attention_backward_op().call(
        gradients[0], saved[0], saved[1], saved[2], saved[3], saved[4], if_defined(saved[5]),
        if_defined(saved[6]), ctx->saved_data["causal"].toBool(), ctx->saved_data["p"].toDouble(),
        ctx->saved_data["scale"].toDouble(), ctx->saved_data["counter"].toIntVector());
    variable_list result(9);
    result[0] = dq;
    result[1] = dk;
    result[2] = dv;
    return result;
  }
};

std::tuple<Tensor, Tensor> attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v,
                                              const OptionalTensor& keys,
                                              const OptionalTensor& bias, bool causal, double p,
                                              double scale, c10::IntArrayRef counter) {
  check_attention(q, k, v, keys, p);
  if (!has_attention_kernel(q, k, v, bias)) {
    return {plain_attention(q, k, v, keys, bias, causal, p, scale, counter),
            at::empty({0}, q.options().dtype(torch::kFloat))};
  }
  const auto result = AttentionFunction::apply(q, k, v, keys, bias, causal, p, scale, counter);
  return {result[0], result[1]};
}

// As LibTorch's own attention: in autocast's type.
std::tuple<Tensor, Tensor> attention_autocast(const Tensor& q, const Tensor& k, const Tensor& v,
                                              const OptionalTensor& keys,
                                              const OptionalTensor& bias, bool causal, double p,
                                              double scale, c10::IntArrayRef counter) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return attention_op().call(to_autocast_dtype(q), to_autocast_dtype(k), to_autocast_dtype(v), keys,
                             bias, causal, p, scale, counter);
}

// q k^T and its product with v.
double attention_flops(const std::vector<Tensor>& arguments, double /*result*/) {
  if (arguments.size() < 3 || arguments[1].dim() != 4) return 0;
  return 4 * static_cast<double>(arguments[0].numel()) * static_cast<double>(arguments[1].size(1));
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  register_fused_op(
      library,
      "attention(Tensor q, Tensor k, Tensor v, Tensor? keys, Tensor? bias, bool causal, float p, "
      "float scale, int[] counter) -> (Tensor, Tensor)",
      {.randomness = OpProperties::Randomness::kArguments, .flops = attention_flops},
      attention_kernel,
      {.meta = attention_meta, .autograd = attention_autograd, .autocast = attention_autocast});
  register_fused_op(
      library,
      "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "Tensor? keys, Tensor? bias, bool causal, float p, float scale, int[] counter) "
      "-> (Tensor, Tensor, Tensor)",
      {.randomness = OpProperties::Randomness::kArguments}, attention_backward_kernel,
      {.meta = attention_backward_meta});
}

}  // namespace

Tensor tiled_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const TiledAttentionOptions& options) {
  const auto counter = counter_of(options.counter, options.dropout, q.size(0));
  const double scale =
      options.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<int64_t>(q.size(-1), 1))));
  return std::get<0>(attention_op().call(q, k, v, if_defined(options.keys),
                                         if_defined(options.bias), options.causal, options.dropout,
                                         scale, counter));
}

}  // namespace fleet::ops
