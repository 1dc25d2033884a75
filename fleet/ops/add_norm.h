// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <torch/types.h>

#include "fleet/ops/random_scope.h"

namespace fleet::ops {

/// Dropout, epsilon and kind of a norm.
struct AddNormOptions {
  double dropout = 0;  // of x, always: give 0 outside of training
  double eps = 1e-5;
  bool rms = false;                           // RMSNorm instead of LayerNorm
  std::optional<RandomCounter> counter = {};  // unset: the next of the forward
  bool save_sum = false;  // keep what is normalised for backward instead of the result
};

/// norm(residual + dropout(x)) over the last dimension, in one pass over memory: LayerNorm (Ba et
/// al., arXiv 1607.06450) or RMSNorm (Zhang and Sennrich, arXiv 1910.07467). `residual`, `weight`
/// and `bias` may be undefined. The result has the residual's type, and must not be changed in
/// place where gradients are wanted: it is what backward starts from, unless `save_sum` is on.
///
///   x = add_norm(dense(context), x, weight, bias, {.dropout = 0.1});
///   x = add_norm(x, {}, weight, {}, {.rms = true});   // RMSNorm alone
torch::Tensor add_norm(const torch::Tensor& x, const torch::Tensor& residual,
                       const torch::Tensor& weight, const torch::Tensor& bias,
                       const AddNormOptions& options = {});

}  // namespace fleet::ops
