// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Storage.h>
#include <torch/types.h>

#include "fleet/core/tensor_memory.h"
#include "fleet/core/torch/interception.h"

namespace fleet::memory {

using compat::is_strided;

inline const c10::StorageImpl* storage_of(const torch::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

/// The bytes of its storage from the first element of a strided tensor to the last.
struct ByteRange {
  int64_t begin = 0, end = 0;
  bool overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
  bool contains(const ByteRange& other) const { return begin <= other.begin && other.end <= end; }
};
inline ByteRange range_of(const torch::Tensor& strided) {
  int64_t elements = strided.numel() > 0 ? 1 : 0;
  if (elements > 0) {
    for (int64_t d = 0; d < strided.dim(); ++d) {
      elements += (strided.size(d) - 1) * strided.stride(d);
    }
  }
  const auto size = static_cast<int64_t>(strided.element_size());
  const auto begin = strided.storage_offset() * size;
  return {.begin = begin, .end = begin + elements * size};
}

/// False only if no element of one strided tensor lies in an element of the other, both in one
/// storage: columns of a matrix lie between one another, and do not overlap.
bool may_overlap(const torch::Tensor& a, const torch::Tensor& b);

/// A whole storage as a tensor of bytes. Neither autograd nor a tape records this.
inline torch::Tensor bytes_of(const c10::Storage& storage) {
  const compat::NoInterceptScope unrecorded;
  const torch::NoGradGuard no_grad;
  return torch::empty({0}, torch::TensorOptions(torch::kByte).device(storage.device()))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

}  // namespace fleet::memory
