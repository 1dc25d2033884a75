#include "fleet/data/resize_kernels.inl"

namespace fleet {
const ResizeKernels kResizeKernels_generic = kKernels;
}  // namespace fleet
