// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/resize_kernels.h"

#include <string_view>

#include "fleet/ops/update/update_kernels.h"

namespace fleet {

const ResizeKernels& resize_kernels() {
#ifdef FLEET_X86
  if (ops::update_kernels().name != std::string_view("generic")) return kResizeKernels_avx2;
#endif
  return kResizeKernels_generic;
}

}  // namespace fleet
