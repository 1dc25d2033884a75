// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "fleet/core/torch/cast_rules.h"
#include "fleet/ops/packed_linear.h"

namespace fleet::ops {

LinearImpl::LinearImpl(int64_t in, int64_t out, const LinearOptions& options) {
  auto start = torch::empty({out, in}, options.device);
  weight =
      register_parameter("weight", options.std > 0 ? start.normal_(0, options.std) : start.zero_());
  if (options.bias) bias = register_parameter("bias", torch::zeros({out}, options.device));
}

torch::Tensor LinearImpl::forward(const torch::Tensor& x) { return packed_linear(x, weight, bias); }

torch::Tensor cast_for_products(const torch::Tensor& x) {
  const auto device = x.device().type();
  if (x.scalar_type() != torch::kFloat || !at::autocast::is_autocast_available(device) ||
      !at::autocast::is_autocast_enabled(device) || compat::is_named_by_cast_rules("linear")) {
    return x;
  }
  return x.to(at::autocast::get_autocast_dtype(device));
}

}  // namespace fleet::ops
