// SPDX-License-Identifier: Apache-2.0
#include "bench/foreach_optimizers.h"

#include <cmath>
#include <memory>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace fleet::bench {
namespace {

using Tensors = std::vector<torch::Tensor>;

std::shared_ptr<Tensors> zeros_of(const Tensors& tensors) {
  auto result = std::make_shared<Tensors>();
  for (const auto& tensor : tensors) result->push_back(torch::zeros_like(tensor));
  return result;
}

// Biases and norms keep a ratio of 1.
Tensors ratios_of(const Tensors& values, const torch::Tensor& numerator,
                  const torch::Tensor& denominator, double factor) {
  auto ratio = numerator / denominator * factor;
  ratio = torch::where((numerator > 0) & (denominator > 0), ratio, torch::ones_like(ratio));
  Tensors result = ratio.unbind();
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].dim() <= 1) result[i] = torch::ones({});
  }
  return result;
}

}  // namespace

std::function<void()> foreach_lars(Tensors values, Tensors gradients) {
  auto velocities = zeros_of(values);
  return [=] {
    const torch::NoGradGuard no_grad;
    const auto value_norms = torch::stack(at::_foreach_norm(values));
    const auto gradient_norms = torch::stack(at::_foreach_norm(gradients));
    const auto ratios =
        ratios_of(values, value_norms, gradient_norms + value_norms * 0.0005, 0.001 * 1e-4);
    auto d = at::_foreach_add(gradients, values, 0.0005);
    at::_foreach_mul_(d, ratios);
    at::_foreach_mul_(*velocities, 0.9);
    at::_foreach_add_(*velocities, d);
    at::_foreach_sub_(values, *velocities);
  };
}

std::function<void()> foreach_lamb(Tensors values, Tensors gradients) {
  auto m = zeros_of(values);
  auto v = zeros_of(values);
  return [=, step = 0]() mutable {
    const torch::NoGradGuard no_grad;
    ++step;
    at::_foreach_mul_(*m, 0.9);
    at::_foreach_add_(*m, gradients, 0.1);
    at::_foreach_mul_(*v, 0.999);
    at::_foreach_addcmul_(*v, gradients, gradients, 0.001);
    auto denominator = at::_foreach_sqrt(*v);
    at::_foreach_div_(denominator, std::sqrt(1 - std::pow(0.999, step)));
    at::_foreach_add_(denominator, 1e-6);
    auto update = at::_foreach_div(*m, denominator);
    at::_foreach_div_(update, 1 - std::pow(0.9, step));
    at::_foreach_add_(update, values, 0.01);
    const auto ratios = ratios_of(values, torch::stack(at::_foreach_norm(values)),
                                  torch::stack(at::_foreach_norm(update)), 1);
    at::_foreach_mul_(update, ratios);
    at::_foreach_add_(values, update, -1e-4);
  };
}

}  // namespace fleet::bench
