// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/gelu_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include "fleet/core/text/format.h"
#include "fleet/ops/bias_gelu_ops.inl"
#include "fleet/ops/product.h"

namespace fleet::ops {
namespace {

using GeluLinearOp = Tensor(const Tensor&, const OptionalTensor&, const Tensor&,
                            const OptionalTensor&, double, c10::IntArrayRef, bool);

const auto& gelu_linear_op() {
  static const auto op = fleet_op<GeluLinearOp>("gelu_linear");
  return op;
}

void check_weight(const Tensor& x, const Tensor& weight) {
  if (weight.dim() == 2 && x.dim() > 0 && weight.size(1) == x.size(-1)) return;
  throw Error("gelu_linear", format("x is {}, and the weight {}: it must have a column for each "
                                    "element of the last dimension",
                                    c10::str(x.sizes()), c10::str(weight.sizes())));
}

Tensor gelu_linear_kernel(const Tensor& x, const OptionalTensor& bias, const Tensor& weight,
                          const OptionalTensor& out_bias, double p, c10::IntArrayRef counter,
                          bool tanh) {
  check_weight(x, weight);
  return linear_product(bias_gelu_op().call(x, bias, p, counter, tanh), weight,
                        out_bias.value_or(Tensor()));
}

struct GeluLinearFunction : torch::autograd::Function<GeluLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const OptionalTensor& bias,
                        const Tensor& weight, const OptionalTensor& out_bias, double p,
                        c10::IntArrayRef counter, bool tanh) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["counter"] = counter;
    ctx->saved_data["tanh"] = tanh;
    ctx->saved_data["weight"] = weight.requires_grad();
    ctx->saved_data["out_bias"] = out_bias && out_bias->requires_grad();
    ctx->save_for_backward({x, bias.value_or(Tensor()), weight});
    const at::AutoDispatchBelowADInplaceOrView below;
    return gelu_linear_op().call(x, bias, weight, out_bias, p, counter, tanh);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    refuse_second_order("gelu_linear");
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &bias = saved[1], &weight = saved[2];
    const auto dy = gradients[0].to(x.scalar_type()).reshape({-1, weight.size(0)});
    const auto [dx, dbias, recomputed] = bias_gelu_backward_op().call(
        product(dy, weight).view(x.sizes()), x, if_defined(bias), ctx->saved_data["p"].toDouble(),
        ctx->saved_data["counter"].toIntVector(), ctx->saved_data["tanh"].toBool(),
        /*recompute=*/ctx->saved_data["weight"].toBool());
    variable_list result(7);
    result[0] = dx;
    if (bias.defined()) result[1] = dbias.to(bias.scalar_type());
    if (ctx->saved_data["weight"].toBool()) {
      result[2] = product(dy.t(), recomputed.view({-1, weight.size(1)}));
    }
    if (ctx->saved_data["out_bias"].toBool()) result[3] = dy.sum(0);
    return result;
  }
};

Tensor gelu_linear_autograd(const Tensor& x, const OptionalTensor& bias, const Tensor& weight,
                            const OptionalTensor& out_bias, double p, c10::IntArrayRef counter,
                            bool tanh) {
  check_weight(x, weight);
  if (!has_kernel(x)) {
    return at::linear(bias_gelu_op().call(x, bias, p, counter, tanh), weight, out_bias);
  }
  return GeluLinearFunction::apply(x, bias, weight, out_bias, p, counter, tanh);
}

// As LibTorch's linear: in autocast's type.
Tensor gelu_linear_autocast(const Tensor& x, const OptionalTensor& bias, const Tensor& weight,
                            const OptionalTensor& out_bias, double p, c10::IntArrayRef counter,
                            bool tanh) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return gelu_linear_op().call(
      to_autocast_dtype(x), bias, to_autocast_dtype(weight),
      out_bias && out_bias->defined() ? OptionalTensor(to_autocast_dtype(*out_bias)) : std::nullopt,
      p, counter, tanh);
}

Tensor gelu_linear_meta(const Tensor& x, const OptionalTensor& bias, const Tensor& weight,
                        const OptionalTensor& out_bias, double p, c10::IntArrayRef counter,
                        bool tanh) {
  check_weight(x, weight);
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::empty(sizes, x.options());
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  register_fused_op(library,
                    "gelu_linear(Tensor x, Tensor? bias, Tensor weight, Tensor? out_bias, float p, "
                    "int[] counter, bool tanh=False) -> Tensor",
                    {.randomness = OpProperties::Randomness::kArguments, .flops = product_flops},
                    gelu_linear_kernel,
                    {.meta = gelu_linear_meta,
                     .autograd = gelu_linear_autograd,
                     .autocast = gelu_linear_autocast});
}

}  // namespace

Tensor gelu_linear(const Tensor& x, const Tensor& bias, const Tensor& weight,
                   const Tensor& out_bias, const BiasGeluOptions& options) {
  const auto counter = counter_of(options.counter, options.dropout, x.dim() > 1 ? x.size(0) : 1);
  return gelu_linear_op().call(x, if_defined(bias), weight, if_defined(out_bias), options.dropout,
                               counter, options.tanh);
}

}  // namespace fleet::ops
