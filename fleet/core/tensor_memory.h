// SPDX-License-Identifier: Apache-2.0
#pragma once

// What LibTorch's tensors are made of, below its public C++ API.

#include <c10/core/Storage.h>
#include <c10/util/FunctionRef.h>
#include <torch/types.h>

namespace fleet::compat {

/// Whether sizes, strides, offset, type and the bits for "conjugated" and "negated" say all of a
/// tensor that its storage does not: not so for sparse, nested and quantized ones.
inline bool is_strided(const torch::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == torch::kStrided && !tensor.is_nested() &&
         !tensor.is_quantized() && !tensor._is_zerotensor();
}

/// The memory that an op in place on this tensor writes to: its storage, or that of a sparse
/// tensor's values. Null for an opaque tensor.
const c10::StorageImpl* storage_written_to(const torch::Tensor& tensor);

/// All storages in which a sparse tensor lies, indices included.
void for_each_part(const torch::Tensor& sparse, c10::function_ref<void(const c10::Storage&)> visit);

/// Whether the memory lives at least as long as the storage. Not so for `torch::from_blob` without
/// a deleter.
inline bool owns_memory(const c10::StorageImpl& storage) {
  const auto& data = storage.data_ptr();
  return data.get() == nullptr || data.get_context() != nullptr;
}

/// `whole.as_strided(...)`, conjugated and negated as asked, whatever `whole` is.
torch::Tensor strided_view(const torch::Tensor& whole, c10::IntArrayRef sizes,
                           c10::IntArrayRef strides, int64_t offset, bool is_conj, bool is_neg);

}  // namespace fleet::compat
