// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/dropout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "fleet/ops/fused_op.inl"

namespace fleet::ops {
namespace {

using DropoutOp = Tensor(const Tensor&, double, c10::IntArrayRef);

const auto& dropout_op() {
  static const auto op = fleet_op<DropoutOp>("dropout");
  return op;
}

// By LibTorch's ops, for any type and device.
Tensor plain_dropout(const Tensor& x, double p, c10::IntArrayRef counter) {
  const auto stream = random_stream(p, counter);
  if (x.is_meta()) return x * 1.0;
  const auto mask = keep_mask(x.sizes(), stream).to(x.options());
  return x * (mask * static_cast<double>(stream.scale));
}

Tensor dropout_kernel(const Tensor& x, double p, c10::IntArrayRef counter) {
  const auto stream = random_stream(p, counter);
  if (!stream.drops()) return x.clone();
  if (!has_kernel(x)) return plain_dropout(x, p, counter);
  const auto input = x.contiguous();
  auto y = at::empty_like(input);
  if (y.numel() == 0) return y;
  const int64_t samples = input.dim() > 0 ? input.size(0) : 1;
  const DropoutArgs args{.x = input.const_data_ptr(),
                         .y = y.mutable_data_ptr(),
                         .sample_size = input.numel() / samples,
                         .stream = &stream};
  const auto kernel = layer_kernels().dropout[kernel_of(x)];
  parallel_ranges(samples * ((args.sample_size + 63) / 64), 64,
                  [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return y;
}

Tensor dropout_meta(const Tensor& x, double p, c10::IntArrayRef counter) {
  return at::empty(x.sizes(), x.options().memory_format(torch::MemoryFormat::Contiguous));
}

// Its own backward: the same mask on the gradient.
struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, double p, c10::IntArrayRef counter) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["counter"] = counter;
    const at::AutoDispatchBelowADInplaceOrView below;
    return dropout_op().call(x, p, counter);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {dropout_op().call(gradients[0], ctx->saved_data["p"].toDouble(),
                              ctx->saved_data["counter"].toIntVector()),
            Tensor(), Tensor()};
  }
};

Tensor dropout_autograd(const Tensor& x, double p, c10::IntArrayRef counter) {
  return has_kernel(x) ? DropoutFunction::apply(x, p, counter) : plain_dropout(x, p, counter);
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  register_fused_op(library, "dropout(Tensor x, float p, int[] counter) -> Tensor",
                    {.randomness = OpProperties::Randomness::kArguments}, dropout_kernel,
                    {.meta = dropout_meta, .autograd = dropout_autograd});
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  if (!training || p == 0) return x;
  return dropout(x, p, next_counter(x.dim() > 0 ? x.size(0) : 1));
}

Tensor dropout(const Tensor& x, double p, const RandomCounter& counter) {
  return dropout_op().call(x, p, counter);
}

}  // namespace fleet::ops
