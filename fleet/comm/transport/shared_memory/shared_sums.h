// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"

namespace fleet::comm {

/// Reduces the ranks' `inputs`, each laid out as `result`, in rank order into `result`: the same
/// bits wherever it is computed. bfloat16 and half are summed in float and rounded once; a NaN of
/// any rank makes a maximum NaN.
void reduce_in_rank_order(const std::vector<const void*>& inputs, ReduceOp op,
                          const torch::Tensor& result);

}  // namespace fleet::comm
