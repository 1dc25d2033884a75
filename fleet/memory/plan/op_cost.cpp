// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/op_cost.h"

#include <algorithm>
#include <string_view>

#include "fleet/core/tensor_memory.h"
#include "fleet/memory/plan/step_profile.h"
#include "fleet/memory/tape/op_record.h"

namespace fleet::memory {
namespace {

double count_of(const torch::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

// Multiplications and additions, for each number of the result.
double flops_of(std::string_view name, const std::vector<torch::Tensor>& in, double out) {
  const auto is = [&](auto... names) { return ((name == names) || ...); };
  if (in.size() < 2 || !std::ranges::all_of(in, compat::is_strided)) return 0;
  if (is("aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::mv", "aten::dot")) {
    return in[0].dim() > 0 ? 2 * out * static_cast<double>(in[0].size(-1)) : 0;
  }
  if (is("aten::addmm", "aten::baddbmm")) return 2 * out * static_cast<double>(in[1].size(-1));
  if (is("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution",
         "aten::_convolution") &&
      in[1].dim() > 0) {
    return 2 * out * count_of(in[1]) / static_cast<double>(std::max<int64_t>(in[1].size(0), 1));
  }
  if (is("aten::scaled_dot_product_attention") && in[1].dim() > 1) {
    return 4 * count_of(in[0]) * static_cast<double>(in[1].size(-2));
  }
  return 0;
}

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
  cost.flops = flops_of(record.traits->name, arguments, out);
  return cost;
}

void set_times(StepProfile& profile, const MachineRates& rates) {
  profile.forward_seconds = 0;
  for (auto& op : profile.ops) {
    op.seconds = std::max(op.cost.flops / rates.flops, op.cost.bytes / rates.bytes);
    op.replay_seconds = op.seconds;
    op.backward_seconds = 2 * op.seconds;
    profile.forward_seconds += op.seconds;
  }
  profile.backward_seconds = 2 * profile.forward_seconds;
}

}  // namespace fleet::memory
