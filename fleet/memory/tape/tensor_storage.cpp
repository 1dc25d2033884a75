// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/tensor_storage.h"

#include <algorithm>
#include <cstdint>

#include <c10/util/SmallVector.h>

namespace fleet::memory {
namespace {

// Where the elements of a strided tensor lie: at `offset`, plus a multiple of each stride.
struct Lattice {
  struct Dimension {
    int64_t size = 0, stride = 0;
  };
  int64_t offset = 0;
  c10::SmallVector<Dimension, 5> dimensions;  // the longest stride last, each stride once

  explicit Lattice(const torch::Tensor& tensor) : offset(tensor.storage_offset()) {
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      const int64_t size = tensor.size(d), stride = tensor.stride(d);
      if (size <= 1 || stride == 0) continue;
      const auto same = std::ranges::find(dimensions, stride, &Dimension::stride);
      if (same != dimensions.end()) {
        same->size += size - 1;
      } else {
        dimensions.push_back({.size = size, .stride = stride});
      }
    }
    std::ranges::sort(dimensions, {}, &Dimension::stride);
  }

  int64_t longest() const { return dimensions.empty() ? 0 : dimensions.back().stride; }
  // How many steps of the longest stride there are; then that dimension is gone.
  int64_t take(int64_t stride) {
    if (longest() != stride) return 1;
    const int64_t size = dimensions.back().size;
    dimensions.pop_back();
    return size;
  }
  // From the first element to the last.
  int64_t extent() const {
    int64_t sum = 0;
    for (const auto& dimension : dimensions) sum += (dimension.size - 1) * dimension.stride;
    return sum;
  }
};

}  // namespace

// The storage is read as rows as long as the longest stride. Where neither tensor runs over the end
// of a row, the two meet only in rows that both have, at places within these that both have.
bool may_overlap(const torch::Tensor& a, const torch::Tensor& b) {
  if (!range_of(a).overlaps(range_of(b))) return false;
  if (a.element_size() != b.element_size()) return true;
  Lattice one(a), other(b);
  while (const int64_t row = std::max(one.longest(), other.longest())) {
    const int64_t rows = one.take(row), other_rows = other.take(row);
    const int64_t first = one.offset / row, other_first = other.offset / row;
    one.offset %= row;
    other.offset %= row;
    if (one.offset + one.extent() >= row || other.offset + other.extent() >= row) return true;
    if (first + rows <= other_first || other_first + other_rows <= first) return false;
  }
  return one.offset == other.offset;
}

}  // namespace fleet::memory
