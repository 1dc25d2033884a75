// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/images/resize_kernels.inl"

namespace fleet {
const ResizeKernels kResizeKernels_generic = kKernels;
}  // namespace fleet
