#include "fleet/data/resize_kernels.inl"

namespace fleet {
const ResizeKernels kResizeKernels_avx2 = kKernels;
}  // namespace fleet
