// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/layer_norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "fleet/ops/add_norm.h"

namespace fleet::ops {

LayerNormImpl::LayerNormImpl(int64_t width, const LayerNormOptions& options) : eps_(options.eps) {
  weight = register_parameter("weight", torch::ones({width}, options.device));
  bias = register_parameter("bias", torch::zeros({width}, options.device));
}

torch::Tensor LayerNormImpl::forward(const torch::Tensor& x) {
  return torch::layer_norm(x, weight.sizes(), weight, bias, eps_);
}

torch::Tensor add_norm(const torch::Tensor& x, const torch::Tensor& residual, LayerNorm& norm,
                       double dropout) {
  return add_norm(x, residual, norm->weight, norm->bias,
                  {.dropout = norm->is_training() ? dropout : 0, .eps = norm->eps()});
}

}  // namespace fleet::ops
