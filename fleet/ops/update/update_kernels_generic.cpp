// SPDX-License-Identifier: Apache-2.0
#define FLEET_KERNELS_NAME "generic"
#include "fleet/ops/update/update_kernels.inl"

namespace fleet::ops {
extern const UpdateKernels kUpdateKernels_generic;
const UpdateKernels kUpdateKernels_generic = kKernels;
}  // namespace fleet::ops
