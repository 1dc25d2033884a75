// SPDX-License-Identifier: Apache-2.0
#include "fleet/ops/layers/conv2d.h"

#include <cmath>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace fleet::ops {

Conv2dImpl::Conv2dImpl(int64_t in, int64_t out, const Conv2dOptions& options) : options_(options) {
  const int64_t k = options.kernel;
  const auto layout =
      options.channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  auto start =
      torch::empty({out, in, k, k}, torch::TensorOptions(options.device).memory_format(layout));
  weight = register_parameter("weight",
                              start.normal_(0, std::sqrt(2.0 / static_cast<double>(out * k * k))));
  if (options.bias) bias = register_parameter("bias", torch::zeros({out}, options.device));
}

torch::Tensor Conv2dImpl::forward(const torch::Tensor& x) {
  return torch::conv2d(x, weight, bias, options_.stride, options_.kernel / 2);
}

}  // namespace fleet::ops
