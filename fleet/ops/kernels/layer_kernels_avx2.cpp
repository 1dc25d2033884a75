// SPDX-License-Identifier: Apache-2.0
#define FLEET_KERNELS_NAME "avx2"
#include "fleet/ops/kernels/layer_kernels.inl"

namespace fleet::ops {
extern const LayerKernels kLayerKernels_avx2;
const LayerKernels kLayerKernels_avx2 = kKernels;
}  // namespace fleet::ops
