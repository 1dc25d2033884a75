// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/batch_norm_relu.h"

#include <cmath>

#include <ATen/Context.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/fused_op.inl"

namespace fleet::ops {
namespace {

using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

using BatchNormReluOp = Three(const Tensor&, const OptionalTensor&, const Tensor&, const Tensor&,
                              const OptionalTensor&, const OptionalTensor&, bool, double, double,
                              bool);
using BatchNormReluBackwardOp = Four(const Tensor&, const Tensor&, const OptionalTensor&,
                                     const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                     bool, bool);

const auto& batch_norm_relu_op() {
  static const auto op = fleet_op<BatchNormReluOp>("batch_norm_relu");
  return op;
}
const auto& batch_norm_relu_backward_op() {
  static const auto op = fleet_op<BatchNormReluBackwardOp>("batch_norm_relu_backward");
  return op;
}

void check_batch_norm(const Tensor& x, const OptionalTensor& residual, const Tensor& weight,
                      const OptionalTensor& running_mean, bool training) {
  if (x.dim() == 4 && weight.dim() == 1 && weight.size(0) == x.size(1) &&
      (!residual || residual->sizes() == x.sizes()) && (training || running_mean)) {
    return;
  }
  throw Error("batch_norm",
              format("x is {}, the residual {}, the weight {}", c10::str(x.sizes()),
                     residual ? c10::str(residual->sizes()) : "none", c10::str(weight.sizes())),
              "x and the residual are N x C x H x W, the weight has C elements; without training "
              "running statistics are needed");
}

bool has_batch_norm_kernel(const Tensor& x, const OptionalTensor& residual) {
  return has_kernel(x) && x.scalar_type() == torch::kFloat &&
         (!residual || residual->scalar_type() == torch::kFloat);
}

// By LibTorch's ops, for any type and device.
Tensor plain_batch_norm_relu(const Tensor& x, const OptionalTensor& residual, const Tensor& weight,
                             const Tensor& bias, const OptionalTensor& running_mean,
                             const OptionalTensor& running_var, bool training, double momentum,
                             double eps, bool relu) {
  auto y = at::batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps,
                          at::globalContext().userEnabledCuDNN());
  if (residual) y = y + *residual;
  return relu ? at::relu(y) : y;
}

Tensor in_channels_last(const Tensor& x) { return x.contiguous(torch::MemoryFormat::ChannelsLast); }

Tensor like_channels_last(const Tensor& x) {
  return at::empty(x.sizes(), x.options().memory_format(torch::MemoryFormat::ChannelsLast));
}

// Rows of channels.
int64_t row_count(const Tensor& x) { return x.size(0) * x.size(2) * x.size(3); }

// Two sums per channel over all rows, each thread's added up in their order.
template <typename Kernel>
std::pair<Tensor, Tensor> sums_of(const BatchNormArgs& args, int64_t rows, const Kernel& kernel) {
  const int64_t ranges = range_count(rows, rows_per_thread(args.channels));
  auto sums = at::zeros({2, ranges, args.channels}, torch::kFloat);
  auto* const data = sums.mutable_data_ptr<float>();
  for_ranges(rows, ranges, [&](int64_t i, int64_t begin, int64_t end) {
    kernel(args, data + i * args.channels, data + (ranges + i) * args.channels, begin, end);
  });
  const auto totals = sums.to(torch::kDouble).sum(1);
  return {totals[0], totals[1]};
}

BatchNormArgs batch_norm_args(const Tensor& x, const Tensor& residual) {
  return {.x = x.const_data_ptr(),
          .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
          .channels = x.size(1)};
}

Three batch_norm_relu_kernel(const Tensor& x_, const OptionalTensor& residual_,
                             const Tensor& weight, const Tensor& bias,
                             const OptionalTensor& running_mean, const OptionalTensor& running_var,
                             bool training, double momentum, double eps, bool relu) {
  check_batch_norm(x_, residual_, weight, running_mean, training);
  if (!has_batch_norm_kernel(x_, residual_)) {
    const auto none = at::empty({0}, x_.options());
    return {plain_batch_norm_relu(x_, residual_, weight, bias, running_mean, running_var, training,
                                  momentum, eps, relu),
            none, none};
  }
  const auto x = in_channels_last(x_);
  const auto residual = residual_ ? in_channels_last(*residual_) : Tensor();
  auto y = like_channels_last(x);
  const int64_t rows = row_count(x);
  const auto floats = torch::TensorOptions(torch::kFloat);
  if (y.numel() == 0) return {y, at::zeros({x.size(1)}, floats), at::zeros({x.size(1)}, floats)};
  auto args = batch_norm_args(x, residual);
  Tensor mean, variance;
  if (training) {
    args.mean = x.const_data_ptr<float>();  // of the first row: near enough that little cancels
    const auto [sum, square] = sums_of(args, rows, layer_kernels().channel_sums);
    const auto n = static_cast<double>(rows);
    const auto offset = sum / n;
    mean = (x.select(2, 0).select(2, 0).select(0, 0).to(torch::kDouble) + offset).to(torch::kFloat);
    variance = (square / n - offset.square()).clamp_min(0);
    if (running_mean && running_mean->defined()) {
      running_mean->lerp_(mean.to(running_mean->scalar_type()), momentum);
    }
    if (running_var && running_var->defined()) {
      running_var->lerp_((variance * (n / (n - 1))).to(running_var->scalar_type()), momentum);
    }
  } else {
    mean = running_mean->to(torch::kFloat).clone();
    variance = running_var->to(torch::kDouble);
  }
  const auto rstd = (variance + eps).rsqrt().to(torch::kFloat);
  const auto scale = (weight.to(torch::kFloat) * rstd).contiguous();
  const auto shift = (bias.to(torch::kFloat) - mean * scale).contiguous();
  args.scale = floats_of(scale);
  args.shift = floats_of(shift);
  args.y = y.mutable_data_ptr();
  args.relu = relu;
  parallel_ranges(rows, rows_per_thread(args.channels), [&](int64_t begin, int64_t end) {
    layer_kernels().batch_norm(args, begin, end);
  });
  return {y, mean, rstd};
}

Four batch_norm_relu_backward_kernel(const Tensor& dy_, const Tensor& x_,
                                     const OptionalTensor& residual_, const Tensor& weight,
                                     const Tensor& bias, const Tensor& mean, const Tensor& rstd,
                                     bool training, bool relu) {
  const auto x = in_channels_last(x_);
  const auto dy = in_channels_last(dy_.to(torch::kFloat));
  const auto residual = residual_ ? in_channels_last(*residual_) : Tensor();
  auto dx = like_channels_last(x);
  auto dresidual = residual_ ? like_channels_last(x) : at::empty({0}, x.options());
  const int64_t rows = row_count(x);
  if (dx.numel() == 0) return {dx, dresidual, at::zeros_like(mean), at::zeros_like(mean)};
  const auto scale = (weight.to(torch::kFloat) * rstd).contiguous();
  const auto shift = (bias.to(torch::kFloat) - mean * scale).contiguous();
  auto args = batch_norm_args(x, residual);
  args.scale = floats_of(scale);
  args.shift = floats_of(shift);
  args.mean = floats_of(mean);
  args.relu = relu;
  args.dy = dy.const_data_ptr();
  const auto [sum, product] = sums_of(args, rows, layer_kernels().batch_norm_sums);
  const auto n = static_cast<double>(rows);
  const auto mean_g = (training ? sum / n : sum * 0).to(torch::kFloat);
  const auto slope =
      (training ? product / n * rstd.to(torch::kDouble).square() : product * 0).to(torch::kFloat);
  args.mean_g = floats_of(mean_g);
  args.slope = floats_of(slope);
  args.dx = dx.mutable_data_ptr();
  args.dresidual = residual_ ? dresidual.mutable_data_ptr() : nullptr;
  parallel_ranges(rows, rows_per_thread(args.channels), [&](int64_t begin, int64_t end) {
    layer_kernels().batch_norm_backward(args, begin, end);
  });
  return {dx, dresidual, (product * rstd).to(torch::kFloat), sum.to(torch::kFloat)};
}

Three batch_norm_relu_meta(const Tensor& x, const OptionalTensor& residual, const Tensor& weight,
                           const Tensor& bias, const OptionalTensor& running_mean,
                           const OptionalTensor& running_var, bool training, double momentum,
                           double eps, bool relu) {
  check_batch_norm(x, residual, weight, running_mean, training);
  const auto floats =
      x.options().dtype(torch::kFloat).memory_format(torch::MemoryFormat::Contiguous);
  return {like_channels_last(x), at::empty({x.size(1)}, floats), at::empty({x.size(1)}, floats)};
}

Four batch_norm_relu_backward_meta(const Tensor& dy, const Tensor& x,
                                   const OptionalTensor& residual, const Tensor& weight,
                                   const Tensor& bias, const Tensor& mean, const Tensor& rstd,
                                   bool training, bool relu) {
  return {like_channels_last(x), residual ? like_channels_last(x) : at::empty({0}, x.options()),
          at::empty_like(mean), at::empty_like(mean)};
}

struct BatchNormReluFunction : torch::autograd::Function<BatchNormReluFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x,
                               const OptionalTensor& residual, const Tensor& weight,
                               const Tensor& bias, const OptionalTensor& running_mean,
                               const OptionalTensor& running_var, bool training, double momentum,
                               double eps, bool relu) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, mean, rstd] = batch_norm_relu_op().call(
        x, residual, weight, bias, running_mean, running_var, training, momentum, eps, relu);
    ctx->saved_data["training"] = training;
    ctx->saved_data["relu"] = relu;
    ctx->save_for_backward({x, residual.value_or(Tensor()), weight, bias, mean, rstd});
    ctx->mark_non_differentiable({mean, rstd});
    return {y, mean, rstd};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const bool has_residual = saved[1].defined();
    const auto [dx, dresidual, dweight, dbias] = batch_norm_relu_backward_op().call(
        gradients[0], saved[0], if_defined(saved[1]), saved[2], saved[3], saved[4], saved[5],
        ctx->saved_data["training"].toBool(), ctx->saved_data["relu"].toBool());
    variable_list result(10);
    result[0] = dx;
    if (has_residual) result[1] = dresidual;
    result[2] = dweight.to(saved[2].scalar_type());
    result[3] = dbias.to(saved[3].scalar_type());
    return result;
  }
};

Three batch_norm_relu_autograd(const Tensor& x, const OptionalTensor& residual,
                               const Tensor& weight, const Tensor& bias,
                               const OptionalTensor& running_mean,
                               const OptionalTensor& running_var, bool training, double momentum,
                               double eps, bool relu) {
  check_batch_norm(x, residual, weight, running_mean, training);
  if (!has_batch_norm_kernel(x, residual)) {
    const auto none = at::empty({0}, x.options());
    return {plain_batch_norm_relu(x, residual, weight, bias, running_mean, running_var, training,
                                  momentum, eps, relu),
            none, none};
  }
  const auto y = BatchNormReluFunction::apply(x, residual, weight, bias, running_mean, running_var,
                                              training, momentum, eps, relu);
  return {y[0], y[1], y[2]};
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  // The statistics are written, and not declared so: as with LibTorch's batch_norm.
  register_fused_op(
      library,
      "batch_norm_relu(Tensor x, Tensor? residual, Tensor weight, Tensor bias, "
      "Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, "
      "bool relu=True) -> (Tensor, Tensor, Tensor)",
      {.randomness = OpProperties::Randomness::kNone}, batch_norm_relu_kernel,
      {.meta = batch_norm_relu_meta, .autograd = batch_norm_relu_autograd});
  register_fused_op(
      library,
      "batch_norm_relu_backward(Tensor dy, Tensor x, Tensor? residual, Tensor weight, Tensor bias, "
      "Tensor mean, Tensor rstd, bool training, bool relu) -> (Tensor, Tensor, Tensor, Tensor)",
      {.randomness = OpProperties::Randomness::kNone}, batch_norm_relu_backward_kernel,
      {.meta = batch_norm_relu_backward_meta});
}

}  // namespace

Tensor batch_norm_relu(const Tensor& x, const Tensor& residual, const BatchNormTensors& norm,
                       const BatchNormReluOptions& options) {
  return std::get<0>(batch_norm_relu_op().call(
      x, if_defined(residual), norm.weight, norm.bias, if_defined(norm.running_mean),
      if_defined(norm.running_var), options.training, options.momentum, options.eps, options.relu));
}

}  // namespace fleet::ops
