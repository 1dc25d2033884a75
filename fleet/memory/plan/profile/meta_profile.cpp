// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/meta_profile.h"

#include <cctype>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/tape/policies.h"

namespace fleet::memory {
namespace {

// "Could not run 'aten::x' with arguments from the 'Meta' backend", and similar.
std::string op_in(const std::string& text) {
  const auto is_part_of_name = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.';
  };
  const auto colons = text.find("::");
  if (colons == std::string::npos) return "an op";
  auto begin = colons, end = colons + 2;
  while (begin > 0 && is_part_of_name(static_cast<unsigned char>(text[begin - 1]))) --begin;
  while (end < text.size() && is_part_of_name(static_cast<unsigned char>(text[end]))) ++end;
  return text.substr(begin, end - begin);
}

}  // namespace

StepProfile profile_on_meta(const std::function<torch::Tensor()>& loss, const MachineRates& rates) {
  auto& meta = BudgetAllocator::meta();
  FLEET_ASSERT(meta.is_on(), "meta tensors are not counted");
  std::shared_ptr<Profiler> profiler;
  try {
    profiler = std::make_shared<Profiler>(meta.counter());
    torch::Tensor value;
    {
      EvictOnDemand keep;  // meta tensors are never short of memory
      TapeScope scope(keep, profiler);
      value = loss();
    }
    FLEET_ASSERT(value.is_meta(), "the loss is on " + value.device().str());
    value.backward();
  } catch (const c10::NotImplementedError& error) {
    compat::flush_failed_backward();
    throw Error("plan",
                format("{} cannot run on meta tensors, which have shapes and no numbers",
                       op_in(error.what_without_backtrace())),
                "plan by a run instead: set recompute_configs.memory_budget in the program");
  }
  auto profile = profiler->finish();
  set_times(profile, rates);
  return profile;
}

}  // namespace fleet::memory
