// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/cpu_limit.h"

#include <fstream>

#include "fleet/core/process/control_group.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

// Microseconds of CPU time in each period; "max" and -1 mean as much as there is.
std::optional<double> quota_of(const ControlGroup& group) {
  double quota = 0, period = 0;
  if (group.version == 2) {
    std::ifstream file(group.folder / "cpu.max");
    if (!(file >> quota >> period)) return {};
  } else if (!(std::ifstream(group.folder / "cpu.cfs_quota_us") >> quota) ||
             !(std::ifstream(group.folder / "cpu.cfs_period_us") >> period)) {
    return {};
  }
  if (quota <= 0 || period <= 0) return {};
  return quota / period;
}

}  // namespace

std::optional<CpuLimit> cpu_limit(const std::string& root) {
  std::optional<CpuLimit> smallest;
  for (const auto& group : control_groups("cpu", root)) {
    const auto cores = quota_of(group);
    if (!cores || (smallest && smallest->cores <= *cores)) continue;
    smallest = CpuLimit{*cores, format("control group {}", group.name)};
  }
  return smallest;
}

}  // namespace fleet
