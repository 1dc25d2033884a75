// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/fast_op_rules.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <ATen/ExpandUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "fleet/ops/add_norm.h"
#include "fleet/ops/bias_gelu.h"
#include "fleet/ops/cross_entropy.h"
#include "fleet/ops/dropout.h"
#include "fleet/ops/fused_op.inl"
#include "fleet/ops/packed_linear.h"
#include "fleet/ops/packed_matmul.h"
#include "fleet/ops/tiled_attention.h"

namespace fleet {
namespace {

using torch::Tensor;

// Why a call stays as it is.
constexpr const char* kType = "type";
constexpr const char* kDevice = "device";
constexpr const char* kLayout = "layout";
constexpr const char* kShape = "shape";
constexpr const char* kMask = "mask";
constexpr const char* kOptions = "options";

Tensor tensor_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : Tensor();
}

// Null: the kernels take it.
const char* obstacle(const Tensor& x) {
  if (!x.is_cpu() && !x.is_meta()) return kDevice;
  if (x.layout() != torch::kStrided || x.is_quantized() ||
      x.unsafeGetTensorImpl()->is_python_dispatch() || x.is_neg() || x._is_zerotensor()) {
    return kLayout;
  }
  if (!ops::has_kernel(x)) return kType;
  return x._fw_grad(/*level=*/0).defined() ? kOptions : nullptr;  // forward-mode differentiation
}

const char* obstacle_of_parameter(const Tensor& x, const Tensor& like) {
  if (!x.defined()) return nullptr;
  if (const auto* const why = obstacle(x)) return why;
  if (x.device() != like.device()) return kDevice;
  const bool is_mixed = like.scalar_type() == torch::kBFloat16 && x.scalar_type() == torch::kFloat;
  return x.scalar_type() == like.scalar_type() || is_mixed ? nullptr : kType;
}

// The order of dimensions in which a tensor without gaps is contiguous.
std::vector<int64_t> memory_order(const Tensor& x) {
  std::vector<int64_t> order(static_cast<size_t>(x.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  return order;
}

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> result(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    result[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return result;
}

// Rows of tokens, or heads, come first where a sample has several: they are its elements.
Tensor dropout_by_sample(const Tensor& x, double p) {
  const int64_t samples = ops::samples_of_forward();
  if (samples == 0 || x.dim() == 0 || x.size(0) == samples || x.size(0) % samples != 0) {
    return ops::dropout(x, p);
  }
  return ops::dropout(x.view({samples, x.numel() / samples}), p).view(x.sizes());
}

// Of layer_norm and rms_norm; null: over the last dimension, by the kernels.
const char* obstacle_of_norm(const Tensor& x, const std::vector<int64_t>& shape,
                             const Tensor& weight, const Tensor& bias) {
  if (const auto* const why = obstacle(x)) return why;
  if (shape.size() != 1 || x.dim() == 0 || x.size(-1) != shape[0] || x.numel() == 0) return kShape;
  if (!x.is_contiguous()) return kLayout;
  for (const auto& parameter : {weight, bias}) {
    if (const auto* const why = obstacle_of_parameter(parameter, x)) return why;
    if (parameter.defined() && (parameter.dim() != 1 || parameter.size(0) != shape[0])) {
      return kShape;
    }
  }
  return nullptr;
}

// A dimension of a mask that was expanded is one again.
Tensor without_expansion(Tensor mask) {
  for (int64_t d = 0; d < mask.dim(); ++d) {
    if (mask.size(d) > 1 && mask.stride(d) == 0) mask = mask.narrow(d, 0, 1);
  }
  return mask;
}

// Whether it only says which keys of a sample are there, and each sample has one.
bool is_key_mask(const Tensor& mask, const Tensor& q, const Tensor& k) {
  if (mask.scalar_type() != torch::kBool || mask.dim() != 4) return false;
  if (mask.size(0) != q.size(0) || mask.size(1) != 1 || mask.size(2) != 1 ||
      mask.size(3) != k.size(2)) {
    return false;
  }
  const compat::NoInterceptScope unseen;
  return mask.is_meta() || mask.any(-1).all().item<bool>();
}

// Whether Fleet multiplies the rows of x by a matrix of depth x columns.
bool has_product_with(const Tensor& x, const Tensor& matrix, const Tensor& bias = {}) {
  const compat::NoInterceptScope unseen;
  return ops::has_packed_linear(x, matrix.t(), bias);
}

}  // namespace

Tensor FastOpsAccess::bias_of(FastOps& fast, const Tensor& mask, torch::ScalarType type) {
  if (mask.scalar_type() != torch::kBool) return mask;
  const auto version = static_cast<int64_t>(mask._version());
  if (fast.mask_.is_same(mask) && fast.mask_version_ == version &&
      fast.bias_.scalar_type() == type) {
    return fast.bias_;
  }
  const auto options = mask.options().dtype(type);
  fast.bias_ = at::where(mask, at::zeros({}, options),
                         at::full({}, -std::numeric_limits<double>::infinity(), options));
  fast.mask_ = mask;
  fast.mask_version_ = version;
  return fast.bias_;
}

// dropout(input, p, train)
FastOpOutcome replace_dropout(FastOps& /*fast*/, const c10::IValue* arguments) {
  const auto x = arguments[0].toTensor();
  const double p = arguments[1].toDouble();
  if (!arguments[2].toBool() || p == 0 || x.numel() == 0) return FastOpOutcome::idle();
  if (!(p > 0 && p < 1)) return FastOpOutcome::kept(kOptions);
  if (const auto* const why = obstacle(x)) return FastOpOutcome::kept(why);
  if (x.is_contiguous()) return {dropout_by_sample(x, p)};
  if (!x.is_non_overlapping_and_dense()) return FastOpOutcome::kept(kLayout);
  const auto order = memory_order(x);
  const auto permuted = x.permute(order);
  if (!permuted.is_contiguous()) return FastOpOutcome::kept(kLayout);
  return {dropout_by_sample(permuted, p).permute(inverse(order))};
}

// gelu(self, approximate)
FastOpOutcome replace_gelu(FastOps& /*fast*/, const c10::IValue* arguments) {
  const auto x = arguments[0].toTensor();
  if (const auto* const why = obstacle(x)) return FastOpOutcome::kept(why);
  if (!x.is_contiguous()) return FastOpOutcome::kept(kLayout);
  const auto& approximate = arguments[1].toStringRef();
  if (approximate != "none" && approximate != "tanh") return FastOpOutcome::kept(kOptions);
  return {ops::bias_gelu(x, {}, {.tanh = approximate == "tanh"})};
}

// layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable)
FastOpOutcome replace_layer_norm(FastOps& /*fast*/, const c10::IValue* arguments) {
  const auto x = arguments[0].toTensor();
  const auto weight = tensor_of(arguments[2]), bias = tensor_of(arguments[3]);
  if (const auto* const why = obstacle_of_norm(x, arguments[1].toIntVector(), weight, bias)) {
    return FastOpOutcome::kept(why);
  }
  // The program may write to the result, which LibTorch's backward does not read.
  return {ops::add_norm(x, {}, weight, bias, {.eps = arguments[4].toDouble(), .save_sum = true})};
}

// rms_norm(input, normalized_shape, weight, eps)
FastOpOutcome replace_rms_norm(FastOps& /*fast*/, const c10::IValue* arguments) {
  const auto x = arguments[0].toTensor();
  const auto weight = tensor_of(arguments[2]);
  if (const auto* const why = obstacle_of_norm(x, arguments[1].toIntVector(), weight, {})) {
    return FastOpOutcome::kept(why);
  }
  if (weight.defined() && weight.scalar_type() != x.scalar_type())
    return FastOpOutcome::kept(kType);
  const double eps =
      arguments[3].isNone() ? std::numeric_limits<float>::epsilon() : arguments[3].toDouble();
  return {ops::add_norm(x, {}, weight, {}, {.eps = eps, .rms = true, .save_sum = true})};
}

// scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale,
// enable_gqa), of N x heads x S x d, or N x S x d.
FastOpOutcome replace_attention(FastOps& fast, const c10::IValue* arguments) {
  auto q = arguments[0].toTensor(), k = arguments[1].toTensor(), v = arguments[2].toTensor();
  auto mask = tensor_of(arguments[3]);
  const double p = arguments[4].toDouble();
  const bool causal = arguments[5].toBool();
  const bool may_group = arguments[7].toBool();
  for (const auto& x : {q, k, v}) {
    if (const auto* const why = obstacle(x)) return FastOpOutcome::kept(why);
    if (x.device() != q.device()) return FastOpOutcome::kept(kDevice);
    if (x.dim() != q.dim() || x.numel() == 0) return FastOpOutcome::kept(kShape);
  }
  if (!(p >= 0 && p < 1)) return FastOpOutcome::kept(kOptions);
  const bool is_cast = q.is_cpu() && at::autocast::is_autocast_enabled(at::kCPU);
  if (is_cast && at::autocast::get_autocast_dtype(at::kCPU) != torch::kBFloat16) {
    return FastOpOutcome::kept(kType);
  }
  if (!is_cast && (k.scalar_type() != q.scalar_type() || v.scalar_type() != q.scalar_type())) {
    return FastOpOutcome::kept(kType);
  }
  const int64_t dims = q.dim();
  if (dims != 4 && dims != 3) return FastOpOutcome::kept(kShape);
  if (mask.defined()) {
    if (causal || mask.requires_grad() || mask.dim() > dims || mask.device() != q.device() ||
        mask.layout() != torch::kStrided) {
      return FastOpOutcome::kept(kMask);
    }
    if (mask.scalar_type() != torch::kBool && mask.scalar_type() != q.scalar_type()) {
      return FastOpOutcome::kept(kMask);
    }
  }
  if (dims == 3) {
    // Heads of samples in one dimension are told apart where the number of samples is known.
    const int64_t samples = ops::samples_of_forward();
    const bool has_heads = samples > 0 && q.size(0) % samples == 0 && k.size(0) == q.size(0) &&
                           v.size(0) == q.size(0) && !mask.defined();
    const auto with_heads = [&](const Tensor& x) {
      return has_heads ? x.unflatten(0, {samples, x.size(0) / samples}) : x.unsqueeze(1);
    };
    q = with_heads(q);
    k = with_heads(k);
    v = with_heads(v);
    if (mask.defined() && mask.dim() == 3) mask = mask.unsqueeze(1);
  }
  if (k.size(0) != q.size(0) || v.size(0) != q.size(0) || v.size(1) != k.size(1) ||
      k.size(3) != q.size(3) || v.size(3) != q.size(3) || v.size(2) != k.size(2)) {
    return FastOpOutcome::kept(kShape);
  }
  if (q.size(1) != k.size(1) && !(may_group && q.size(1) % k.size(1) == 0)) {
    return FastOpOutcome::kept(kShape);
  }
  ops::TiledAttentionOptions options{.causal = causal, .dropout = p};
  if (!arguments[6].isNone()) options.scale = arguments[6].toDouble();
  if (mask.defined()) {
    const auto narrow = without_expansion(mask);
    if (!at::is_expandable_to(mask.sizes(), {q.size(0), q.size(1), q.size(2), k.size(2)})) {
      return FastOpOutcome::kept(kMask);
    }
    if (is_key_mask(narrow, q, k)) {
      options.keys = narrow.reshape({q.size(0), k.size(2)});
    } else {
      options.bias = FastOpsAccess::bias_of(fast, mask, torch::kFloat);
    }
  }
  const auto heads_second = [](const Tensor& x) { return x.transpose(1, 2); };
  const auto y = heads_second(
      ops::tiled_attention(heads_second(q), heads_second(k), heads_second(v), options));
  return {dims == 4 ? y : y.flatten(0, 1)};
}

// cross_entropy_loss(self, target, weight, reduction, ignore_index, label_smoothing)
FastOpOutcome replace_cross_entropy(FastOps& /*fast*/, const c10::IValue* arguments) {
  using Options = ops::CrossEntropyOptions;
  const auto logits = arguments[0].toTensor(), labels = arguments[1].toTensor();
  if (const auto* const why = obstacle(logits)) return FastOpOutcome::kept(why);
  if (tensor_of(arguments[2]).defined())
    return FastOpOutcome::kept(kOptions);  // weights of classes
  if (logits.dim() != 2 || labels.dim() != 1 || labels.size(0) != logits.size(0) ||
      logits.numel() == 0) {
    return FastOpOutcome::kept(kShape);
  }
  if (labels.scalar_type() != torch::kLong) return FastOpOutcome::kept(kType);
  if (labels.device() != logits.device()) return FastOpOutcome::kept(kDevice);
  if (!logits.is_contiguous() || !labels.is_contiguous()) return FastOpOutcome::kept(kLayout);
  const int64_t reduction = arguments[3].toInt(), ignored = arguments[4].toInt();
  const double smoothing = arguments[5].toDouble();
  if (!(smoothing >= 0 && smoothing <= 1)) return FastOpOutcome::kept(kOptions);
  // A label that is none is LibTorch's to report.
  if (labels.is_cpu() && ops::first_bad_label(labels, logits.size(1), ignored) >= 0) {
    return FastOpOutcome::kept(kOptions);
  }
  const auto loss = ops::cross_entropy(
      logits, labels,
      {.reduction = reduction == at::Reduction::None   ? Options::Reduction::kNone
                    : reduction == at::Reduction::Mean ? Options::Reduction::kMean
                                                       : Options::Reduction::kSum,
       .ignore_index = ignored,
       .label_smoothing = smoothing});
  // Autocast computes losses in float.
  const bool is_cast = logits.is_cpu() && at::autocast::is_autocast_enabled(at::kCPU);
  return {is_cast ? loss : loss.to(logits.scalar_type())};
}

// linear(input, weight, bias). Where Fleet's products are not faster there is nothing to count.
FastOpOutcome replace_linear(FastOps& /*fast*/, const c10::IValue* arguments) {
  const auto x = arguments[0].toTensor(), weight = arguments[1].toTensor();
  const auto bias = tensor_of(arguments[2]);
  if (!ops::has_packed_linear(x, weight, bias)) return FastOpOutcome::idle();
  return {ops::packed_linear(x, weight, bias)};
}

// addmm(self, mat1, mat2, *, beta, alpha), where it is a linear layer.
FastOpOutcome replace_addmm(FastOps& /*fast*/, const c10::IValue* arguments) {
  const auto bias = arguments[0].toTensor(), x = arguments[1].toTensor();
  const auto weight = arguments[2].toTensor();
  const bool is_linear = bias.dim() == 1 && x.dim() == 2 && weight.dim() == 2 &&
                         arguments[3].toScalar().equal(1) && arguments[4].toScalar().equal(1);
  if (!is_linear || !has_product_with(x, weight, bias)) return FastOpOutcome::idle();
  return {ops::packed_linear(x, weight.t(), bias)};
}

// bmm(self, mat2), matmul(self, other): of many pairs of matrices, or rows and one matrix, which is
// how LibTorch's C++ writes a linear layer.
FastOpOutcome replace_matmul(FastOps& /*fast*/, const c10::IValue* arguments) {
  const auto a = arguments[0].toTensor(), b = arguments[1].toTensor();
  if (b.dim() == 2 && a.dim() >= 2) {
    if (!has_product_with(a, b)) return FastOpOutcome::idle();
    return {ops::packed_linear(a, b.t())};
  }
  if (!ops::has_packed_matmul(a, b)) return FastOpOutcome::idle();
  return {ops::packed_matmul(a, b)};
}

}  // namespace fleet
