// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/bias_gelu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/zeros.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/bias_gelu_ops.inl"
#include "fleet/ops/dropout.h"

namespace fleet::ops {
namespace {

struct GeluShape {
  int64_t width;
  int64_t rows;
  int64_t rows_per_sample;

  explicit GeluShape(const Tensor& x)
      : width(x.dim() > 0 ? x.size(-1) : 1),
        rows(width > 0 ? x.numel() / width : 0),
        rows_per_sample(x.dim() > 1 && x.size(0) > 0 ? std::max<int64_t>(rows / x.size(0), 1)
                                                     : std::max<int64_t>(rows, 1)) {}
};

void check_bias_gelu(const Tensor& x, const Tensor& bias) {
  if (!bias.defined()) return;
  if (x.dim() > 0 && bias.dim() == 1 && bias.size(0) == x.size(-1)) return;
  throw Error("bias_gelu", format("x is {}, and the bias {}: it must have as many elements as the "
                                  "last dimension",
                                  c10::str(x.sizes()), c10::str(bias.sizes())));
}

// By LibTorch's ops, for any type and device.
Tensor plain_bias_gelu(const Tensor& x, const Tensor& bias, double p, c10::IntArrayRef counter,
                       bool tanh) {
  const auto y = at::gelu(bias.defined() ? x + bias : x, tanh ? "tanh" : "none");
  if (p == 0) return y;
  const RandomCounter position = {counter[0], counter[1], counter[2], counter[3]};
  return dropout(x.dim() > 1 ? y : y.unsqueeze(0), p, position).view(x.sizes());
}

Tensor bias_gelu_kernel(const Tensor& x, const OptionalTensor& bias, double p,
                        c10::IntArrayRef counter, bool tanh) {
  check_bias_gelu(x, bias.value_or(Tensor()));
  if (!has_kernel(x)) return plain_bias_gelu(x, bias.value_or(Tensor()), p, counter, tanh);
  const auto stream = random_stream(p, counter);
  const auto input = x.contiguous();
  auto y = at::empty_like(input);
  if (y.numel() == 0) return y;
  const GeluShape shape(input);
  const auto b = as_floats(bias);
  const GeluArgs args{.x = input.const_data_ptr(),
                      .bias = floats_of(b),
                      .y = y.mutable_data_ptr(),
                      .dx = nullptr,
                      .recomputed = nullptr,
                      .dbias = nullptr,
                      .width = shape.width,
                      .rows_per_sample = shape.rows_per_sample,
                      .tanh = tanh,
                      .stream = &stream};
  const auto kernel = layer_kernels().gelu[kernel_of(x)];
  parallel_ranges(shape.rows, rows_per_thread(shape.width),
                  [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return y;
}

// dx, the bias's gradient and, where it is to be recomputed, what forward returned.
std::tuple<Tensor, Tensor, Tensor> bias_gelu_backward_kernel(const Tensor& dy_, const Tensor& x,
                                                             const OptionalTensor& bias, double p,
                                                             c10::IntArrayRef counter, bool tanh,
                                                             bool recompute) {
  const auto stream = random_stream(p, counter);
  const auto dy = dy_.to(x.scalar_type()).contiguous();
  const auto input = x.contiguous();
  auto dx = at::empty_like(input);
  auto recomputed = recompute ? at::empty_like(input) : at::empty({0}, x.options());
  const GeluShape shape(input);
  const auto b = as_floats(bias);
  const int64_t ranges = range_count(shape.rows, rows_per_thread(shape.width));
  auto dbias = at::zeros({b.defined() ? ranges : 0, shape.width}, x.options().dtype(torch::kFloat));
  if (dx.numel() > 0) {
    const auto kernel = layer_kernels().gelu_backward[kernel_of(x)];
    for_ranges(shape.rows, ranges, [&](int64_t i, int64_t begin, int64_t end) {
      const GeluArgs args{
          .x = input.const_data_ptr(),
          .bias = floats_of(b),
          .y = const_cast<void*>(dy.const_data_ptr()),
          .dx = dx.mutable_data_ptr(),
          .recomputed = recompute ? recomputed.mutable_data_ptr() : nullptr,
          .dbias = b.defined() ? dbias.mutable_data_ptr<float>() + i * shape.width : nullptr,
          .width = shape.width,
          .rows_per_sample = shape.rows_per_sample,
          .tanh = tanh,
          .stream = &stream};
      kernel(args, begin, end);
    });
  }
  return {dx, dbias.sum(0), recomputed};
}

Tensor bias_gelu_meta(const Tensor& x, const OptionalTensor& bias, double p,
                      c10::IntArrayRef counter, bool tanh) {
  return at::empty(x.sizes(), x.options());
}

std::tuple<Tensor, Tensor, Tensor> bias_gelu_backward_meta(const Tensor& dy, const Tensor& x,
                                                           const OptionalTensor& bias, double p,
                                                           c10::IntArrayRef counter, bool tanh,
                                                           bool recompute) {
  return {at::empty(x.sizes(), x.options()),
          at::empty({x.dim() > 0 ? x.size(-1) : 1}, x.options().dtype(torch::kFloat)),
          recompute ? at::empty(x.sizes(), x.options()) : at::empty({0}, x.options())};
}

struct BiasGeluFunction : torch::autograd::Function<BiasGeluFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const OptionalTensor& bias, double p,
                        c10::IntArrayRef counter, bool tanh) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["counter"] = counter;
    ctx->saved_data["tanh"] = tanh;
    ctx->save_for_backward({x, bias.value_or(Tensor())});
    const at::AutoDispatchBelowADInplaceOrView below;
    return bias_gelu_op().call(x, bias, p, counter, tanh);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& bias = saved[1];
    const auto [dx, dbias, recomputed] = bias_gelu_backward_op().call(
        gradients[0], saved[0], if_defined(bias), ctx->saved_data["p"].toDouble(),
        ctx->saved_data["counter"].toIntVector(), ctx->saved_data["tanh"].toBool(),
        /*recompute=*/false);
    return {dx, bias.defined() ? dbias.to(bias.scalar_type()) : Tensor(), Tensor(), Tensor(),
            Tensor()};
  }
};

Tensor bias_gelu_autograd(const Tensor& x, const OptionalTensor& bias, double p,
                          c10::IntArrayRef counter, bool tanh) {
  check_bias_gelu(x, bias.value_or(Tensor()));
  if (!has_kernel(x)) return plain_bias_gelu(x, bias.value_or(Tensor()), p, counter, tanh);
  return BiasGeluFunction::apply(x, bias, p, counter, tanh);
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  register_fused_op(
      library,
      "bias_gelu(Tensor x, Tensor? bias, float p, int[] counter, bool tanh=False) -> Tensor",
      {.randomness = OpProperties::Randomness::kArguments}, bias_gelu_kernel,
      {.meta = bias_gelu_meta, .autograd = bias_gelu_autograd});
  register_fused_op(library,
                    "bias_gelu_backward(Tensor dy, Tensor x, Tensor? bias, float p, int[] counter, "
                    "bool tanh=False, bool recompute=False) -> (Tensor, Tensor, Tensor)",
                    {.randomness = OpProperties::Randomness::kArguments}, bias_gelu_backward_kernel,
                    {.meta = bias_gelu_backward_meta});
}

}  // namespace

Tensor bias_gelu(const Tensor& x, const Tensor& bias, const BiasGeluOptions& options) {
  const auto counter = counter_of(options.counter, options.dropout, x.dim() > 1 ? x.size(0) : 1);
  return bias_gelu_op().call(x, if_defined(bias), options.dropout, counter, options.tanh);
}

}  // namespace fleet::ops
