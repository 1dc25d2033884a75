// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/linear_cross_entropy.h"

#include <numeric>

#include <ATen/ops/addmm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/cross_entropy.h"
#include "fleet/ops/fused_op.inl"
#include "fleet/ops/product.h"

namespace fleet::ops {
namespace {

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

using LinearCrossEntropyOp = Four(const Tensor&, const Tensor&, const OptionalTensor&,
                                  const Tensor&, int64_t, double, int64_t, bool);

const auto& linear_cross_entropy_op() {
  static const auto op = fleet_op<LinearCrossEntropyOp>("linear_cross_entropy");
  return op;
}

void check_linear_cross_entropy(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                const Tensor& labels) {
  if (x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) && labels.dim() == 1 &&
      labels.size(0) == x.size(0) && labels.scalar_type() == torch::kLong &&
      (!bias || (bias->dim() == 1 && bias->size(0) == weight.size(0)))) {
    return;
  }
  throw Error(
      "cross_entropy",
      format("x is {}, weight {}, labels {} of {}", c10::str(x.sizes()), c10::str(weight.sizes()),
             c10::str(labels.sizes()), c10::toString(labels.scalar_type())),
      "x is rows x width, weight classes x width, bias has as many elements as classes, "
      "labels as rows, int64");
}

bool has_cross_entropy_kernel(const Tensor& x, const Tensor& weight) {
  return has_kernel(x) && weight.scalar_type() == x.scalar_type();
}

// By LibTorch's ops, for any type and device.
Tensor plain_linear_cross_entropy(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                  const Tensor& labels, int64_t ignore_index, double smoothing) {
  return at::cross_entropy_loss(at::linear(x, weight, bias), labels, {}, at::Reduction::Sum,
                                ignore_index, smoothing);
}

Four linear_cross_entropy_kernel(const Tensor& x_, const Tensor& weight, const OptionalTensor& bias,
                                 const Tensor& labels_, int64_t ignore_index, double smoothing,
                                 int64_t chunk_rows, bool gradients) {
  check_linear_cross_entropy(x_, weight, bias, labels_);
  const auto none = at::empty({0}, x_.options());
  if (!has_cross_entropy_kernel(x_, weight)) {
    FLEET_ASSERT(!gradients, "of other types LibTorch's ops make the gradient");
    return {plain_linear_cross_entropy(x_, weight, bias, labels_, ignore_index, smoothing), none,
            none, none};
  }
  const auto x = x_.contiguous();
  const auto labels = labels_.contiguous();
  const int64_t rows = x.size(0), classes = weight.size(0);
  check_labels(labels, classes, ignore_index);
  constexpr int64_t kLogitBytes = int64_t{32} << 20;
  if (chunk_rows < 1) {
    chunk_rows =
        std::max<int64_t>(256, kLogitBytes / std::max<int64_t>(1, classes * x.element_size()));
  }
  chunk_rows = std::min(chunk_rows, std::max<int64_t>(rows, 1));
  const auto floats = x.options().dtype(torch::kFloat);
  const auto b = as_floats(bias);
  auto logits = at::empty({chunk_rows, classes}, x.options());
  auto losses = at::empty({rows}, floats);
  auto dx = gradients ? at::empty(x.sizes(), x.options()) : none;
  auto dweight = gradients ? at::empty(weight.sizes(), floats) : none;
  auto dbias = gradients && b.defined() ? at::zeros({classes}, floats) : at::empty({0}, floats);
  if (gradients && rows == 0) dweight.zero_();
  const auto kernel = layer_kernels().cross_entropy[kernel_of(x)];
  const auto transposed = weight.t();
  for (int64_t first = 0; first < rows; first += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - first);
    auto part = logits.narrow(0, 0, count);
    const auto input = x.narrow(0, first, count);
    product_into(part, input, transposed);
    const CrossEntropyArgs args{.logits = part.const_data_ptr(),
                                .out = part.mutable_data_ptr(),
                                .bias = floats_of(b),
                                .row_stride = classes,
                                .classes = classes,
                                .labels = labels.const_data_ptr<int64_t>() + first,
                                .ignore_index = ignore_index,
                                .smoothing = static_cast<float>(smoothing),
                                .scale = 1,
                                .gradient = gradients,
                                .losses = losses.mutable_data_ptr<float>() + first};
    parallel_ranges(count, 1, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
    if (!gradients) continue;
    auto dinput = dx.narrow(0, first, count);
    product_into(dinput, part, weight);
    if (x.scalar_type() != torch::kFloat) {
      const auto sum = at::mm(part.t(), input);
      if (first == 0) {
        dweight.copy_(sum);
      } else {
        dweight.add_(sum);
      }
    } else {
      product_into(dweight, part.t(), input, /*adds=*/first > 0);
    }
    if (b.defined()) dbias.add_(part.sum(0, /*keepdim=*/false, torch::kFloat));
  }
  const auto* const values = losses.const_data_ptr<float>();
  const double sum = std::accumulate(values, values + rows, 0.0);
  return {at::full({}, sum, floats), dx, dweight, dbias};
}

Four linear_cross_entropy_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                               const Tensor& labels, int64_t ignore_index, double smoothing,
                               int64_t chunk_rows, bool gradients) {
  check_linear_cross_entropy(x, weight, bias, labels);
  const auto none = at::empty({0}, x.options());
  const auto floats = x.options().dtype(torch::kFloat);
  return {at::empty({}, floats), gradients ? at::empty(x.sizes(), x.options()) : none,
          gradients ? at::empty(weight.sizes(), floats) : none,
          at::empty({gradients && bias ? weight.size(0) : 0}, floats)};
}

struct LinearCrossEntropyFunction : torch::autograd::Function<LinearCrossEntropyFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                               const OptionalTensor& bias, const Tensor& labels,
                               int64_t ignore_index, double smoothing, int64_t chunk_rows) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [loss, dx, dweight, dbias] = linear_cross_entropy_op().call(
        x, weight, bias, labels, ignore_index, smoothing, chunk_rows, /*gradients=*/true);
    ctx->saved_data["weight_type"] = weight.scalar_type();
    if (bias) ctx->saved_data["bias_type"] = bias->scalar_type();
    ctx->save_for_backward({dx, dweight, dbias});
    ctx->mark_non_differentiable({dx, dweight, dbias});
    return {loss, dx, dweight, dbias};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    refuse_second_order("cross_entropy");
    const auto saved = ctx->get_saved_variables();
    const auto& g = gradients[0];
    const bool is_one = g.is_cpu() && g.item<double>() == 1;
    const auto scaled = [&](const Tensor& x, torch::ScalarType type) {
      return (is_one ? x : x * g.to(x.scalar_type())).to(type);
    };
    variable_list result(7);
    result[0] = scaled(saved[0], saved[0].scalar_type());
    result[1] = scaled(saved[1], ctx->saved_data["weight_type"].toScalarType());
    if (ctx->saved_data.count("bias_type") > 0) {
      result[2] = scaled(saved[2], ctx->saved_data["bias_type"].toScalarType());
    }
    return result;
  }
};

Four linear_cross_entropy_autograd(const Tensor& x, const Tensor& weight,
                                   const OptionalTensor& bias, const Tensor& labels,
                                   int64_t ignore_index, double smoothing, int64_t chunk_rows,
                                   bool gradients) {
  check_linear_cross_entropy(x, weight, bias, labels);
  const auto none = at::empty({0}, x.options());
  if (!has_cross_entropy_kernel(x, weight)) {
    return {plain_linear_cross_entropy(x, weight, bias, labels, ignore_index, smoothing), none,
            none, none};
  }
  const bool learns = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad() ||
                                                     (bias && bias->requires_grad()));
  if (!learns) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return linear_cross_entropy_op().call(x, weight, bias, labels, ignore_index, smoothing,
                                          chunk_rows, gradients);
  }
  const auto result = LinearCrossEntropyFunction::apply(x, weight, bias, labels, ignore_index,
                                                        smoothing, chunk_rows);
  return {result[0], result[1], result[2], result[3]};
}

// The product in autocast's type, as LibTorch's linear; sums and gradients of parameters in float.
Four linear_cross_entropy_autocast(const Tensor& x, const Tensor& weight,
                                   const OptionalTensor& bias, const Tensor& labels,
                                   int64_t ignore_index, double smoothing, int64_t chunk_rows,
                                   bool gradients) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return linear_cross_entropy_op().call(to_autocast_dtype(x), to_autocast_dtype(weight), bias,
                                        labels, ignore_index, smoothing, chunk_rows, gradients);
}

// The logits, and the gradients of both factors.
double linear_cross_entropy_flops(const std::vector<Tensor>& arguments, double /*result*/) {
  if (arguments.size() < 2 || arguments[1].dim() != 2) return 0;
  return 6 * static_cast<double>(arguments[0].numel()) * static_cast<double>(arguments[1].size(0));
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  register_fused_op(
      library,
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor labels, "
      "int ignore_index=-100, float label_smoothing=0., int chunk_rows=0, bool gradients=False) "
      "-> (Tensor, Tensor, Tensor, Tensor)",
      {.randomness = OpProperties::Randomness::kNone, .flops = linear_cross_entropy_flops},
      linear_cross_entropy_kernel,
      {.meta = linear_cross_entropy_meta,
       .autograd = linear_cross_entropy_autograd,
       .autocast = linear_cross_entropy_autocast});
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& labels, const LinearCrossEntropyOptions& options) {
  return std::get<0>(linear_cross_entropy_op().call(
      x.dim() > 2 ? x.flatten(0, -2) : x, weight, if_defined(bias), labels.flatten(),
      options.ignore_index, options.label_smoothing, options.chunk_rows, /*gradients=*/false));
}

}  // namespace fleet::ops
