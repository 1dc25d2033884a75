// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/packed_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include "fleet/core/text/format.h"
#include "fleet/ops/fused_op.inl"
#include "fleet/ops/product.h"

namespace fleet::ops {
namespace {

using PackedLinearOp = Tensor(const Tensor&, const Tensor&, const OptionalTensor&);

const auto& packed_linear_op() {
  static const auto op = fleet_op<PackedLinearOp>("packed_linear");
  return op;
}

Tensor packed_linear_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  return linear_product(x, weight, bias.value_or(Tensor()));
}

// In the layout of the weight, which may be the transpose of a matrix: its gradient is added up
// without a copy then.
Tensor weight_gradient(const Tensor& dy, const Tensor& x, bool is_transposed) {
  return is_transposed ? product(x.t(), dy).t() : product(dy.t(), x);
}

struct PackedLinearFunction : torch::autograd::Function<PackedLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const OptionalTensor& bias) {
    const bool weight_learns = weight.requires_grad();
    ctx->saved_data["weight_learns"] = weight_learns;
    ctx->saved_data["bias_learns"] = bias && bias->requires_grad();
    ctx->saved_data["is_transposed"] = weight.stride(0) == 1 && weight.stride(1) != 1;
    ctx->save_for_backward({weight_learns ? x : Tensor(), x.requires_grad() ? weight : Tensor()});
    const at::AutoDispatchBelowADInplaceOrView below;
    return packed_linear_op().call(x, weight, bias);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const auto& dy = gradients[0];
    const auto rows = [](const Tensor& t) { return t.reshape({-1, t.size(-1)}); };
    // Of a graph that gradients go through once more LibTorch's ops make the next.
    const bool is_plain = at::GradMode::is_enabled();
    variable_list result(3);
    if (weight.defined()) {
      auto sizes = dy.sizes().vec();
      sizes.back() = weight.size(1);
      result[0] = is_plain ? at::matmul(dy, weight) : product(rows(dy), weight).view(sizes);
    }
    if (ctx->saved_data["weight_learns"].toBool()) {
      result[1] =
          is_plain ? at::matmul(rows(dy).t(), rows(x))
                   : weight_gradient(rows(dy), rows(x), ctx->saved_data["is_transposed"].toBool());
    }
    if (ctx->saved_data["bias_learns"].toBool()) result[2] = rows(dy).sum(0);
    return result;
  }
};

Tensor packed_linear_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  if (!has_packed_linear(x, weight, bias.value_or(Tensor()))) return at::linear(x, weight, bias);
  return PackedLinearFunction::apply(x, weight, bias);
}

Tensor packed_linear_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  return at::linear(x, weight, bias);  // in autocast's type, whose products are LibTorch's
}

Tensor packed_linear_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& /*bias*/) {
  if (weight.dim() != 2 || x.dim() == 0 || weight.size(1) != x.size(-1)) {
    throw Error("packed_linear", format("x is {}, and the weight {}: it must have a column for "
                                        "each element of the last dimension",
                                        c10::str(x.sizes()), c10::str(weight.sizes())));
  }
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::empty(sizes, x.options());
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  library.def("packed_linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  register_op("fleet::packed_linear",
              {.randomness = OpProperties::Randomness::kNone, .flops = product_flops});
}
TORCH_LIBRARY_IMPL(fleet, CPU, library) { library.impl("packed_linear", packed_linear_kernel); }
TORCH_LIBRARY_IMPL(fleet, Meta, library) { library.impl("packed_linear", packed_linear_meta); }
TORCH_LIBRARY_IMPL(fleet, Autograd, library) {
  library.impl("packed_linear", packed_linear_autograd);
}
TORCH_LIBRARY_IMPL(fleet, AutocastCPU, library) {
  library.impl("packed_linear", packed_linear_autocast);
}

}  // namespace

bool has_packed_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (at::autocast::is_autocast_enabled(at::kCPU)) return false;
  if (bias.defined() &&
      (!is_plain_float(bias) || bias.dim() != 1 || bias.size(0) != weight.size(0))) {
    return false;
  }
  return has_product(x, weight);
}

Tensor packed_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (!has_packed_linear(x, weight, bias)) return torch::linear(x, weight, bias);
  return packed_linear_op().call(x, weight, if_defined(bias));
}

}  // namespace fleet::ops
