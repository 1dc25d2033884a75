// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

namespace fleet::memory {

struct OpRecord;
struct StepProfile;

/// The cost of a call.
struct OpCost {
  double flops = 0;  // of products and convolutions; of other ops none are counted
  double bytes = 0;  // read and written, each tensor once; a view moves nothing
};

/// Of an op that just ran, from the shapes of its `arguments` and results.
OpCost op_cost(const OpRecord& record, const std::vector<torch::Tensor>& arguments);

/// The speed of a machine.
struct MachineRates {
  double flops = 0;
  double bytes = 0;
};

/// Gives every op of a profile the time that a machine of such rates takes: the longer of its
/// arithmetic and its traffic, and twice that in backward. For profiles of meta tensors, on which
/// no clock can measure.
void set_times(StepProfile& profile, const MachineRates& rates);

}  // namespace fleet::memory
