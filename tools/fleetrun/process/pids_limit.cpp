// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/process/pids_limit.h"

#include <fstream>

#include "fleet/core/process/control_group.h"

namespace fleet::launch {
namespace {

// "max" is no number.
std::optional<int64_t> number_in(const std::filesystem::path& file) {
  int64_t number = 0;
  if (std::ifstream(file) >> number) return number;
  return std::nullopt;
}

}  // namespace

std::optional<PidsLimit> pids_limit(const std::string& root) {
  std::optional<PidsLimit> tightest;
  for (const auto& group : control_groups("pids", root)) {
    const auto most = number_in(group.folder / "pids.max");
    const auto used = number_in(group.folder / "pids.current");
    if (most && used && (!tightest || *most - *used < tightest->room()))
      tightest = PidsLimit{*most, *used, group.name};
  }
  return tightest;
}

}  // namespace fleet::launch
