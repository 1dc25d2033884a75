// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/rotary.h"

#include <cmath>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/fused_op.inl"

namespace fleet::ops {
namespace {

const auto& rotary_op() {
  static const auto op =
      fleet_op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)>("rotary");
  return op;
}

void check_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  if (x.dim() == 4 && x.size(3) % 2 == 0 && cos.dim() == 2 && cos.sizes() == sin.sizes() &&
      cos.size(0) >= x.size(1) && 2 * cos.size(1) == x.size(3)) {
    return;
  }
  throw Error("rotary",
              format("x is {}, and the table {}", c10::str(x.sizes()), c10::str(cos.sizes())),
              "x is N x S x heads x d with even d, the table at least S x (d / 2)");
}

// By LibTorch's ops, for any type and device.
Tensor plain_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, bool reverse) {
  const auto table = [&](const Tensor& t) {
    return t.narrow(0, 0, x.size(1)).to(x.options()).unsqueeze(1);
  };
  const auto halves = x.chunk(2, -1);
  const auto c = table(cos), s = reverse ? -table(sin) : table(sin);
  return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1);
}

Tensor rotary_kernel(const Tensor& x_, const Tensor& cos, const Tensor& sin, bool reverse) {
  check_rotary(x_, cos, sin);
  if (!has_kernel(x_)) return plain_rotary(x_, cos, sin, reverse);
  const auto x = x_.stride(3) == 1 ? x_ : x_.contiguous();
  auto y = at::empty(x.sizes(), x.options());
  if (y.numel() == 0) return y;
  const auto c = as_floats(cos), s = as_floats(sin);
  const RotaryArgs args{.x = x.const_data_ptr(),
                        .y = y.mutable_data_ptr(),
                        .cos = floats_of(c),
                        .sin = floats_of(s),
                        .length = x.size(1),
                        .heads = x.size(2),
                        .half = x.size(3) / 2,
                        .sample_stride = x.stride(0),
                        .row_stride = x.stride(1),
                        .head_stride = x.stride(2),
                        .reverse = reverse};
  const auto kernel = layer_kernels().rotary[kernel_of(x)];
  parallel_ranges(x.size(0) * x.size(1), rows_per_thread(x.size(2) * x.size(3)),
                  [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return y;
}

Tensor rotary_meta(const Tensor& x, const Tensor& cos, const Tensor& sin, bool reverse) {
  check_rotary(x, cos, sin);
  return at::empty(x.sizes(), x.options());
}

// Its own backward, by the negative angle.
struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin,
                        bool reverse) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["reverse"] = reverse;
    const at::AutoDispatchBelowADInplaceOrView below;
    return rotary_op().call(x, cos, sin, reverse);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    return {
        rotary_op().call(gradients[0], saved[0], saved[1], !ctx->saved_data["reverse"].toBool()),
        Tensor(), Tensor(), Tensor()};
  }
};

Tensor rotary_autograd(const Tensor& x, const Tensor& cos, const Tensor& sin, bool reverse) {
  check_rotary(x, cos, sin);
  return has_kernel(x) ? RotaryFunction::apply(x, cos, sin, reverse)
                       : plain_rotary(x, cos, sin, reverse);
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  register_fused_op(library,
                    "rotary(Tensor x, Tensor cos, Tensor sin, bool reverse=False) -> Tensor",
                    {.randomness = OpProperties::Randomness::kNone}, rotary_kernel,
                    {.meta = rotary_meta, .autograd = rotary_autograd});
}

}  // namespace

RotaryTable RotaryTable::of(int64_t length, int64_t width, double base, torch::Device device) {
  const auto options = torch::TensorOptions(device).dtype(torch::kDouble);
  const auto rates =
      at::arange(0, width, 2, options).mul(-std::log(base) / static_cast<double>(width)).exp();
  const auto angles = at::arange(length, options).unsqueeze(1) * rates;
  return {angles.cos().to(torch::kFloat), angles.sin().to(torch::kFloat)};
}

Tensor rotary(const Tensor& x, const RotaryTable& table) {
  return rotary_op().call(x, table.cos, table.sin, false);
}

}  // namespace fleet::ops
