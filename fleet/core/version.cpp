// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/version.h"

#include <ATen/Version.h>
#include <torch/version.h>

#include "fleet/core/text/format.h"

namespace fleet {

std::string version_text(std::string_view program) {
  return format("{} {} (LibTorch {})\nCPU capability: {}\n", program, FLEET_VERSION, TORCH_VERSION,
                at::get_cpu_capability());
}

}  // namespace fleet
