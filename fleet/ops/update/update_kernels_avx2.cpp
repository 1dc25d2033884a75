// SPDX-License-Identifier: Apache-2.0
#define FLEET_KERNELS_NAME "avx2"
#include "fleet/ops/update/update_kernels.inl"

namespace fleet::ops {
extern const UpdateKernels kUpdateKernels_avx2;
const UpdateKernels kUpdateKernels_avx2 = kKernels;
}  // namespace fleet::ops
