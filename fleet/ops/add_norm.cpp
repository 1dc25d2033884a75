// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/add_norm.h"

#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/dropout.h"
#include "fleet/ops/fused_op.inl"

namespace fleet::ops {
namespace {

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

using AddNormOp = Four(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                       const OptionalTensor&, double, double, c10::IntArrayRef, bool, bool);
using AddNormBackwardOp = Four(const Tensor&, const Tensor&, bool, const Tensor&, const Tensor&,
                               const OptionalTensor&, const OptionalTensor&, double,
                               c10::IntArrayRef, torch::ScalarType, bool);

const auto& add_norm_op() {
  static const auto op = fleet_op<AddNormOp>("add_norm");
  return op;
}
const auto& add_norm_backward_op() {
  static const auto op = fleet_op<AddNormBackwardOp>("add_norm_backward");
  return op;
}

Tensor defined_or_none(const OptionalTensor& x) { return x.value_or(Tensor()); }

// Rows of the last dimension, and how many of them a sample has.
struct NormShape {
  int64_t width;
  int64_t rows;
  int64_t rows_per_sample;

  explicit NormShape(const Tensor& x)
      : width(x.size(-1)),
        rows(width > 0 ? x.numel() / width : 0),
        rows_per_sample(x.dim() > 1 && x.size(0) > 0 ? std::max<int64_t>(rows / x.size(0), 1)
                                                     : std::max<int64_t>(rows, 1)) {}
};

void check_add_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                    const Tensor& bias) {
  if (x.dim() == 0)
    throw Error("add_norm", "x is a scalar, and the norm is over its last dimension");
  if (residual.defined() && residual.sizes() != x.sizes()) {
    throw Error("add_norm", format("x is {} and the residual {}", c10::str(x.sizes()),
                                   c10::str(residual.sizes())));
  }
  for (const auto& parameter : {weight, bias}) {
    if (!parameter.defined() || (parameter.dim() == 1 && parameter.size(0) == x.size(-1))) continue;
    throw Error("add_norm", format("weight and bias must have {} elements, and one is {}",
                                   x.size(-1), c10::str(parameter.sizes())));
  }
}

// By LibTorch's ops, for any type and device.
Tensor plain_add_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                      const Tensor& bias, double p, double eps, c10::IntArrayRef counter,
                      bool rms) {
  auto sum = x;
  if (p > 0) {
    const RandomCounter position = {counter[0], counter[1], counter[2], counter[3]};
    sum = dropout(x.dim() > 1 ? x : x.unsqueeze(0), p, position).view(x.sizes());
  }
  if (residual.defined()) sum = sum + residual;
  if (!rms) return at::layer_norm(sum, {x.size(-1)}, weight, bias, eps);
  auto y = sum * (sum.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  if (weight.defined()) y = y * weight;
  return bias.defined() ? y + bias : y;
}

// y gives back what was normalised only where no weight is small beside its bias.
bool must_save_sum(const Tensor& weight, const Tensor& bias, torch::ScalarType dtype) {
  if (!weight.defined() || !weight.is_cpu()) return false;
  const auto w = as_floats(weight);
  const auto b = as_floats(bias);
  const float least = dtype == torch::kFloat ? 0.01f : 0.5f;
  for (int64_t i = 0; i < w.numel(); ++i) {
    const float offset = b.defined() ? std::abs(b.const_data_ptr<float>()[i]) : 0.0f;
    if (!(std::abs(w.const_data_ptr<float>()[i]) >= least * (1 + offset))) return true;
  }
  return false;
}

size_t norm_kernel_of(torch::ScalarType x, torch::ScalarType result) {
  if (result == torch::kBFloat16) return 1;
  return x == torch::kFloat ? 0 : 2;
}

Four add_norm_kernel(const Tensor& x, const OptionalTensor& residual_, const OptionalTensor& weight,
                     const OptionalTensor& bias, double p, double eps, c10::IntArrayRef counter,
                     bool rms, bool save_sum) {
  auto residual = defined_or_none(residual_);
  check_add_norm(x, residual, defined_or_none(weight), defined_or_none(bias));
  if (!has_kernel(x) || (residual.defined() && !has_kernel(residual))) {
    const auto none = at::empty({0}, x.options().dtype(torch::kFloat));
    return {plain_add_norm(x, residual, defined_or_none(weight), defined_or_none(bias), p, eps,
                           counter, rms),
            none, none, none};
  }
  const auto stream = random_stream(p, counter);
  const auto input = x.contiguous();
  if (residual.defined()) {
    residual = residual.to(at::promote_types(x.scalar_type(), residual.scalar_type())).contiguous();
  }
  const auto& like = residual.defined() ? residual : input;
  const NormShape shape(input);
  auto y = at::empty_like(like);
  const auto floats =
      x.options().dtype(torch::kFloat).memory_format(torch::MemoryFormat::Contiguous);
  auto sum = save_sum ? at::empty_like(like) : at::empty({0}, like.options());
  auto mean = at::empty({rms ? 0 : shape.rows}, floats);
  auto rstd = at::empty({shape.rows}, floats);
  if (y.numel() == 0) return {y, mean, rstd, sum};
  const auto w = as_floats(weight), b = as_floats(bias);
  const NormArgs args{.x = input.const_data_ptr(),
                      .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
                      .weight = floats_of(w),
                      .bias = floats_of(b),
                      .y = y.mutable_data_ptr(),
                      .sum = save_sum ? sum.mutable_data_ptr() : nullptr,
                      .mean = rms ? nullptr : mean.mutable_data_ptr<float>(),
                      .rstd = rstd.mutable_data_ptr<float>(),
                      .width = shape.width,
                      .rows_per_sample = shape.rows_per_sample,
                      .eps = static_cast<float>(eps),
                      .stream = &stream};
  const auto kernel = layer_kernels().norm[norm_kernel_of(x.scalar_type(), y.scalar_type())];
  parallel_ranges(shape.rows, rows_per_thread(shape.width),
                  [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return {y, mean, rstd, sum};
}

Four add_norm_backward_kernel(const Tensor& dy_, const Tensor& saved, bool saved_is_output,
                              const Tensor& mean, const Tensor& rstd, const OptionalTensor& weight,
                              const OptionalTensor& bias, double p, c10::IntArrayRef counter,
                              torch::ScalarType x_type, bool wants_residual) {
  const auto stream = random_stream(p, counter);
  const auto dy = dy_.to(saved.scalar_type()).contiguous();
  const NormShape shape(dy);
  auto dx = at::empty(dy.sizes(), dy.options().dtype(x_type));
  auto dresidual = wants_residual ? at::empty_like(dy) : at::empty({0}, dy.options());
  const auto w = as_floats(weight), b = as_floats(bias);
  const int64_t ranges = range_count(shape.rows, rows_per_thread(shape.width));
  const auto floats = dy.options().dtype(torch::kFloat);
  auto dweight = at::zeros({w.defined() ? ranges : 0, shape.width}, floats);
  auto dbias = at::zeros({b.defined() ? ranges : 0, shape.width}, floats);
  if (dy.numel() > 0) {
    const auto kernel = layer_kernels().norm_backward[norm_kernel_of(x_type, saved.scalar_type())];
    const auto row_of = [&](Tensor& sums, int64_t i) {
      return sums.size(0) > 0 ? sums.mutable_data_ptr<float>() + i * shape.width : nullptr;
    };
    for_ranges(shape.rows, ranges, [&](int64_t i, int64_t begin, int64_t end) {
      const NormBackwardArgs args{
          .dy = dy.const_data_ptr(),
          .saved = saved.const_data_ptr(),
          .saved_is_output = saved_is_output,
          .mean = mean.numel() > 0 ? mean.const_data_ptr<float>() : nullptr,
          .rstd = rstd.const_data_ptr<float>(),
          .weight = floats_of(w),
          .bias = floats_of(b),
          .dresidual = wants_residual ? dresidual.mutable_data_ptr() : nullptr,
          .dx = dx.mutable_data_ptr(),
          .dweight = row_of(dweight, i),
          .dbias = row_of(dbias, i),
          .width = shape.width,
          .rows_per_sample = shape.rows_per_sample,
          .stream = &stream};
      kernel(args, begin, end);
    });
  }
  return {dx, dresidual, dweight.sum(0), dbias.sum(0)};
}

Four add_norm_meta(const Tensor& x, const OptionalTensor& residual, const OptionalTensor& weight,
                   const OptionalTensor& bias, double p, double eps, c10::IntArrayRef counter,
                   bool rms, bool save_sum) {
  const NormShape shape(x);
  const auto type = residual && residual->defined()
                        ? at::promote_types(x.scalar_type(), residual->scalar_type())
                        : x.scalar_type();
  const auto floats = x.options().dtype(torch::kFloat);
  return {at::empty(x.sizes(), x.options().dtype(type)), at::empty({rms ? 0 : shape.rows}, floats),
          at::empty({shape.rows}, floats),
          save_sum ? at::empty(x.sizes(), x.options().dtype(type))
                   : at::empty({0}, x.options().dtype(type))};
}

Four add_norm_backward_meta(const Tensor& dy, const Tensor& saved, bool saved_is_output,
                            const Tensor& mean, const Tensor& rstd, const OptionalTensor& weight,
                            const OptionalTensor& bias, double p, c10::IntArrayRef counter,
                            torch::ScalarType x_type, bool wants_residual) {
  const auto floats = dy.options().dtype(torch::kFloat);
  return {at::empty(dy.sizes(), dy.options().dtype(x_type)),
          wants_residual ? at::empty(dy.sizes(), saved.options()) : at::empty({0}, saved.options()),
          at::empty({dy.size(-1)}, floats), at::empty({dy.size(-1)}, floats)};
}

struct AddNormFunction : torch::autograd::Function<AddNormFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x,
                               const OptionalTensor& residual, const OptionalTensor& weight,
                               const OptionalTensor& bias, double p, double eps,
                               c10::IntArrayRef counter, bool rms, bool save_sum) {
    const auto w = defined_or_none(weight), b = defined_or_none(bias);
    const at::AutoDispatchBelowADInplaceOrView below;
    // Nothing is added to x, so that x itself is the sum.
    const bool is_sum = save_sum && p == 0 && !residual;
    const auto input = is_sum ? x.contiguous() : x;
    const auto [y, mean, rstd, sum] = add_norm_op().call(input, residual, weight, bias, p, eps,
                                                         counter, rms, save_sum && !is_sum);
    ctx->saved_data["p"] = p;
    ctx->saved_data["counter"] = counter;
    ctx->saved_data["x_type"] = x.scalar_type();
    ctx->saved_data["saved_is_output"] = !save_sum;
    if (residual) ctx->saved_data["residual_type"] = residual->scalar_type();
    ctx->save_for_backward({is_sum ? input : save_sum ? sum : y, mean, rstd, w, b});
    ctx->mark_non_differentiable({mean, rstd, sum});
    return {y, mean, rstd, sum};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& w = saved[3];
    const auto& b = saved[4];
    const double p = ctx->saved_data["p"].toDouble();
    const auto x_type = ctx->saved_data["x_type"].toScalarType();
    const bool has_residual = ctx->saved_data.count("residual_type") > 0;
    const bool is_own = p > 0 || x_type != saved[0].scalar_type();  // else both are the same
    auto [dx, dresidual, dweight, dbias] = add_norm_backward_op().call(
        gradients[0], saved[0], ctx->saved_data["saved_is_output"].toBool(), saved[1], saved[2],
        if_defined(w), if_defined(b), p, ctx->saved_data["counter"].toIntVector(), x_type,
        has_residual && is_own);
    variable_list result(9);
    result[0] = dx;
    if (has_residual) {
      result[1] = (is_own ? dresidual : dx).to(ctx->saved_data["residual_type"].toScalarType());
    }
    if (w.defined()) result[2] = dweight.to(w.scalar_type());
    if (b.defined()) result[3] = dbias.to(b.scalar_type());
    return result;
  }
};

Four add_norm_autograd(const Tensor& x, const OptionalTensor& residual,
                       const OptionalTensor& weight, const OptionalTensor& bias, double p,
                       double eps, c10::IntArrayRef counter, bool rms, bool save_sum) {
  const auto r = defined_or_none(residual), w = defined_or_none(weight), b = defined_or_none(bias);
  check_add_norm(x, r, w, b);
  if (!has_kernel(x) || (r.defined() && !has_kernel(r))) {
    const auto none = at::empty({0}, x.options().dtype(torch::kFloat));
    return {plain_add_norm(x, r, w, b, p, eps, counter, rms), none, none, none};
  }
  save_sum |= must_save_sum(w, b, r.defined() ? r.scalar_type() : x.scalar_type());
  const auto y = AddNormFunction::apply(x, residual, weight, bias, p, eps, counter, rms, save_sum);
  return {y[0], y[1], y[2], y[3]};
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  register_fused_op(
      library,
      "add_norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float p, float eps, "
      "int[] counter, bool rms=False, bool save_sum=False) -> (Tensor, Tensor, Tensor, Tensor)",
      {.randomness = OpProperties::Randomness::kArguments}, add_norm_kernel,
      {.meta = add_norm_meta, .autograd = add_norm_autograd});
  register_fused_op(
      library,
      "add_norm_backward(Tensor dy, Tensor saved, bool saved_is_output, Tensor mean, Tensor rstd, "
      "Tensor? weight, Tensor? bias, float p, int[] counter, ScalarType x_type, "
      "bool wants_residual) -> (Tensor, Tensor, Tensor, Tensor)",
      {.randomness = OpProperties::Randomness::kArguments}, add_norm_backward_kernel,
      {.meta = add_norm_backward_meta});
}

}  // namespace

Tensor add_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                const AddNormOptions& options) {
  const auto counter = counter_of(options.counter, options.dropout, x.dim() > 1 ? x.size(0) : 1);
  return std::get<0>(add_norm_op().call(x, if_defined(residual), if_defined(weight),
                                        if_defined(bias), options.dropout, options.eps, counter,
                                        options.rms, options.save_sum));
}

}  // namespace fleet::ops
