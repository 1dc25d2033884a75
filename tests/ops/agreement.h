// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "fleet/ops/random_scope.h"

namespace fleet::testing {

using Tensors = std::vector<torch::Tensor>;

/// Of random ops.
inline constexpr ops::RandomCounter kCounter = {11, 2, 3, 5};

/// The largest difference, relative to the largest element of `expected` or `least`.
inline double relative_error(const torch::Tensor& got, const torch::Tensor& expected,
                             double least = 1e-3) {
  if (expected.numel() == 0) return got.sizes() == expected.sizes() ? 0 : 1;
  const auto want = expected.detach().to(torch::kDouble);
  const auto difference = (got.detach().to(torch::kDouble) - want).abs().max().item<double>();
  return difference / std::max(want.abs().max().item<double>(), least);
}

/// What an op returns, and the gradients of its arguments for a fixed gradient of the result.
struct Results {
  torch::Tensor y;
  torch::Tensor dy;
  Tensors gradients;
};

inline Results results_of(const std::function<torch::Tensor(const Tensors&)>& op,
                          const Tensors& arguments, torch::ScalarType type) {
  Tensors leaves;
  for (const auto& x : arguments) {  // with their strides
    leaves.push_back(
        x.detach().to(type).clone(torch::MemoryFormat::Preserve).set_requires_grad(true));
  }
  auto generator = at::detail::createCPUGenerator(77);
  Results results;
  results.y = op(leaves);
  results.dy = torch::randn(results.y.sizes(), generator, torch::kDouble);
  results.y.backward(results.dy.to(results.y.scalar_type()));
  for (const auto& leaf : leaves) results.gradients.push_back(leaf.grad());
  return results;
}

/// The kernels in float (or bfloat16) against LibTorch's ops in double, which autograd derives:
/// value and all gradients. `tolerance` is relative to the largest element of each.
///
/// A gradient whose terms cancel (softmax with a single key; a sum over many rows) has the terms'
/// rounding, however small it is. For ops that have such cases, `cancels` counts a tenth of the
/// largest gradient, that of the result included, as the least magnitude.
inline void expect_agreement(const std::function<torch::Tensor(const Tensors&)>& op,
                             const Tensors& arguments, double tolerance,
                             torch::ScalarType type = torch::kFloat, bool cancels = false) {
  Tensors rounded;  // so that only what the op does differs
  for (const auto& x : arguments) rounded.push_back(x.to(type).to(torch::kDouble));
  const auto got = results_of(op, rounded, type);
  const auto expected = results_of(op, rounded, torch::kDouble);
  ASSERT_EQ(got.y.sizes(), expected.y.sizes());
  EXPECT_EQ(got.y.scalar_type(), type);
  EXPECT_LE(relative_error(got.y, expected.y), tolerance) << "value";
  double least = 1e-3;
  const auto include = [&](const torch::Tensor& gradient) {
    if (gradient.numel() > 0) least = std::max(least, gradient.abs().max().item<double>() / 10);
  };
  if (cancels) {
    include(expected.dy);
    for (const auto& gradient : expected.gradients) include(gradient);
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    ASSERT_EQ(got.gradients[i].sizes(), expected.gradients[i].sizes());
    EXPECT_LE(relative_error(got.gradients[i], expected.gradients[i], least), tolerance)
        << "gradient of argument " << i;
  }
}

}  // namespace fleet::testing
