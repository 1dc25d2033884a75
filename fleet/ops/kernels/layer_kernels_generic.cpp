// SPDX-License-Identifier: Apache-2.0
#define FLEET_KERNELS_NAME "generic"
#include "fleet/ops/kernels/layer_kernels.inl"

namespace fleet::ops {
extern const LayerKernels kLayerKernels_generic;
const LayerKernels kLayerKernels_generic = kKernels;
}  // namespace fleet::ops
