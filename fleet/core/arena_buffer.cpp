// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/arena_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>

#include "fleet/core/process/huge_page.h"

namespace fleet {

int64_t aligned_elements(int64_t elements, int64_t element_size) {
  constexpr int64_t kAlignBytes = 64;
  const int64_t step = std::max<int64_t>(1, kAlignBytes / element_size);
  return (elements + step - 1) / step * step;
}

torch::Tensor zeroed_buffer(int64_t numel, const torch::TensorOptions& options) {
  auto tensor = torch::empty({numel}, options);
  const auto bytes = static_cast<uintptr_t>(tensor.nbytes());
  if (tensor.device().is_cpu() && bytes >= 2 * kHugePage) {
    auto* const data = static_cast<std::byte*>(tensor.data_ptr());
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
    // A hint: where it is refused, pages are small.
    (void)::madvise(data + (first - begin), last - first, MADV_HUGEPAGE);
  }
  return tensor.zero_();
}

torch::Tensor view_of_buffer(const torch::Tensor& buffer, int64_t offset,
                             const torch::Tensor& like) {
  const auto strides = like.is_non_overlapping_and_dense()
                           ? like.strides().vec()
                           : torch::empty(like.sizes(), torch::kMeta).strides().vec();
  return buffer.as_strided(like.sizes(), strides, buffer.storage_offset() + offset);
}

torch::Tensor gradient_view_of_buffer(const torch::Tensor& buffer, int64_t offset,
                                      const torch::Tensor& like) {
  const auto view = view_of_buffer(buffer, offset, like);
  return torch::empty({0}, buffer.options())
      .set_(buffer.storage(), view.storage_offset(), view.sizes(), view.strides());
}

}  // namespace fleet
