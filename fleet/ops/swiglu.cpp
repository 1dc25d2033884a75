// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/swiglu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/ops/fused_op.inl"

namespace fleet::ops {
namespace {

const auto& swiglu_op() {
  static const auto op = fleet_op<Tensor(const Tensor&)>("swiglu");
  return op;
}
const auto& swiglu_backward_op() {
  static const auto op = fleet_op<Tensor(const Tensor&, const Tensor&)>("swiglu_backward");
  return op;
}

std::vector<int64_t> halved(const Tensor& x) {
  if (x.dim() == 0 || x.size(-1) % 2 != 0) {
    throw Error("swiglu",
                format("x is {}, and its last dimension is to be two halves", c10::str(x.sizes())));
  }
  auto sizes = x.sizes().vec();
  sizes.back() /= 2;
  return sizes;
}

// By LibTorch's ops, for any type and device.
Tensor plain_swiglu(const Tensor& x) {
  halved(x);
  const auto halves = x.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

SwigluArgs swiglu_args(const Tensor& x) {
  const int64_t width = x.size(-1) / 2;
  const auto* const data = static_cast<const char*>(x.const_data_ptr());
  return {
      .gate = data, .up = data + width * x.element_size(), .width = width, .in_stride = 2 * width};
}

Tensor swiglu_kernel(const Tensor& x_) {
  if (!has_kernel(x_)) return plain_swiglu(x_);
  const auto x = x_.contiguous();
  auto y = at::empty(halved(x), x.options());
  if (y.numel() == 0) return y;
  auto args = swiglu_args(x);
  args.y = y.mutable_data_ptr();
  const auto kernel = layer_kernels().swiglu[kernel_of(x)];
  parallel_ranges(y.numel() / args.width, rows_per_thread(args.width),
                  [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return y;
}

Tensor swiglu_backward_kernel(const Tensor& dy_, const Tensor& x_) {
  const auto x = x_.contiguous();
  const auto dy = dy_.to(x.scalar_type()).contiguous();
  auto dx = at::empty_like(x);
  if (dx.numel() == 0) return dx;
  auto args = swiglu_args(x);
  args.dy = dy.const_data_ptr();
  auto* const data = static_cast<char*>(dx.mutable_data_ptr());
  args.dgate = data;
  args.dup = data + args.width * x.element_size();
  const auto kernel = layer_kernels().swiglu_backward[kernel_of(x)];
  parallel_ranges(dy.numel() / args.width, rows_per_thread(args.width),
                  [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return dx;
}

Tensor swiglu_meta(const Tensor& x) { return at::empty(halved(x), x.options()); }
Tensor swiglu_backward_meta(const Tensor& dy, const Tensor& x) {
  return at::empty(x.sizes(), x.options());
}

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    const at::AutoDispatchBelowADInplaceOrView below;
    return swiglu_op().call(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {swiglu_backward_op().call(gradients[0], ctx->get_saved_variables()[0])};
  }
};

Tensor swiglu_autograd(const Tensor& x) {
  return has_kernel(x) ? SwigluFunction::apply(x) : plain_swiglu(x);
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  register_fused_op(library, "swiglu(Tensor x) -> Tensor",
                    {.randomness = OpProperties::Randomness::kNone}, swiglu_kernel,
                    {.meta = swiglu_meta, .autograd = swiglu_autograd});
  register_fused_op(library, "swiglu_backward(Tensor dy, Tensor x) -> Tensor",
                    {.randomness = OpProperties::Randomness::kNone}, swiglu_backward_kernel,
                    {.meta = swiglu_backward_meta});
}

}  // namespace

Tensor swiglu(const Tensor& x) { return swiglu_op().call(x); }

}  // namespace fleet::ops
