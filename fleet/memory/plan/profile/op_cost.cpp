// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/op_cost.h"

#include <algorithm>

#include "fleet/memory/plan/profile/step_profile.h"
#include "fleet/memory/tape/op_record.h"

namespace fleet::memory {
namespace {

double count_of(const torch::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

}  // namespace

OpCost op_cost(const OpRecord& record, const std::vector<torch::Tensor>& arguments) {
  if (record.traits->is_view) return {};
  OpCost cost;
  for (const auto& tensor : arguments) {
    cost.bytes += count_of(tensor) * static_cast<double>(tensor.element_size());
  }
  double out = 0;
  for (const auto& output : record.outputs) {
    if (output.value < 0) continue;
    if (out == 0) out = static_cast<double>(output.numel);
    cost.bytes +=
        static_cast<double>(output.numel) * static_cast<double>(elementSize(output.dtype));
  }
  if (record.traits->flops) cost.flops = record.traits->flops(arguments, out);
  return cost;
}

void set_times(StepProfile& profile, const MachineRates& rates) {
  profile.forward_seconds = 0;
  profile.recompute_overhead = 0;
  for (auto& op : profile.ops) {
    op.seconds = std::max(op.cost.flops / rates.flops, op.cost.bytes / rates.bytes);
    op.replay_seconds = op.seconds;
    op.backward_seconds = 2 * op.seconds;
    profile.forward_seconds += op.seconds;
  }
  profile.backward_seconds = 2 * profile.forward_seconds;
}

}  // namespace fleet::memory
