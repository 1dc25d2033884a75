// SPDX-License-Identifier: Apache-2.0
#define FLEET_KERNELS_NAME "avx512"
#include "fleet/ops/kernels/layer_kernels.inl"

namespace fleet::ops {
extern const LayerKernels kLayerKernels_avx512;
const LayerKernels kLayerKernels_avx512 = kKernels;
}  // namespace fleet::ops
