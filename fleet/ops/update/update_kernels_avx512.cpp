// SPDX-License-Identifier: Apache-2.0
#define FLEET_KERNELS_NAME "avx512"
#include "fleet/ops/update/update_kernels.inl"

namespace fleet::ops {
extern const UpdateKernels kUpdateKernels_avx512;
const UpdateKernels kUpdateKernels_avx512 = kKernels;
}  // namespace fleet::ops
