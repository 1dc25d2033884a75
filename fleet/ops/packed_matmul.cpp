// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/packed_matmul.h"

#include <ATen/ops/matmul.h>

#include "fleet/ops/fused_op.inl"
#include "fleet/ops/product.h"

namespace fleet::ops {
namespace {

using PackedMatmulOp = Tensor(const Tensor&, const Tensor&);

const auto& packed_matmul_op() {
  static const auto op = fleet_op<PackedMatmulOp>("packed_matmul");
  return op;
}

struct PackedMatmulFunction : torch::autograd::Function<PackedMatmulFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
    ctx->save_for_backward({b.requires_grad() ? a : Tensor(), a.requires_grad() ? b : Tensor()});
    const at::AutoDispatchBelowADInplaceOrView below;
    return packed_matmul_op().call(a, b);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto &a = saved[0], &b = saved[1], &dy = gradients[0];
    // Of a graph that gradients go through once more LibTorch's ops make the next.
    const auto times = [](const Tensor& x, const Tensor& y) {
      return at::GradMode::is_enabled() ? at::matmul(x, y) : batched_product(x, y);
    };
    return {b.defined() ? times(dy, b.transpose(-2, -1)) : Tensor(),
            a.defined() ? times(a.transpose(-2, -1), dy) : Tensor()};
  }
};

Tensor packed_matmul_autograd(const Tensor& a, const Tensor& b) {
  if (!has_packed_matmul(a, b)) return at::matmul(a, b);
  return PackedMatmulFunction::apply(a, b);
}

Tensor packed_matmul_autocast(const Tensor& a, const Tensor& b) {
  return at::matmul(a, b);  // in autocast's type, whose products are LibTorch's
}

TORCH_LIBRARY_FRAGMENT(fleet, library) {
  library.def("packed_matmul(Tensor a, Tensor b) -> Tensor");
  register_op("fleet::packed_matmul",
              {.randomness = OpProperties::Randomness::kNone, .flops = product_flops});
}
TORCH_LIBRARY_IMPL(fleet, CPU, library) { library.impl("packed_matmul", batched_product); }
TORCH_LIBRARY_IMPL(fleet, Meta, library) {
  library.impl("packed_matmul", [](const Tensor& a, const Tensor& b) { return at::matmul(a, b); });
}
TORCH_LIBRARY_IMPL(fleet, Autograd, library) {
  library.impl("packed_matmul", packed_matmul_autograd);
}
TORCH_LIBRARY_IMPL(fleet, AutocastCPU, library) {
  library.impl("packed_matmul", packed_matmul_autocast);
}

}  // namespace

bool has_packed_matmul(const Tensor& a, const Tensor& b) {
  return !at::autocast::is_autocast_enabled(at::kCPU) && has_batched_product(a, b);
}

Tensor packed_matmul(const Tensor& a, const Tensor& b) {
  return has_packed_matmul(a, b) ? packed_matmul_op().call(a, b) : torch::matmul(a, b);
}

}  // namespace fleet::ops
