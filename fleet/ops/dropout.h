// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include "fleet/ops/random_scope.h"

namespace fleet::ops {

/// Srivastava et al., JMLR 15 (2014): each element is zero with probability p, else divided by
/// 1 - p. The first dimension is that of samples. No mask is stored, and none is drawn by a
/// generator: the op `fleet::dropout(x, p, counter)` computes it from its arguments, forward and
/// backward.
///
///   x = dropout(x, 0.1, is_training());
torch::Tensor dropout(const torch::Tensor& x, double p, bool training = true);

/// With the random numbers of `counter`.
torch::Tensor dropout(const torch::Tensor& x, double p, const RandomCounter& counter);

}  // namespace fleet::ops
