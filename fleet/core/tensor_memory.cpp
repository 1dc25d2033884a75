// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/tensor_memory.h"

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>

namespace fleet::compat {

void for_each_part(const torch::Tensor& sparse,
                   c10::function_ref<void(const c10::Storage&)> visit) {
  if (sparse.layout() == torch::kSparse) {
    const auto* impl = static_cast<at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
    for (const auto& part : {impl->values(), impl->indices()}) visit(part.storage());
  } else if (at::sparse_csr::is_sparse_compressed(sparse)) {
    const auto* impl = at::sparse_csr::get_sparse_csr_impl(sparse);
    for (const auto& part : {impl->values(), impl->compressed_indices(), impl->plain_indices()}) {
      visit(part.storage());
    }
  }
}

const c10::StorageImpl* storage_written_to(const torch::Tensor& tensor) {
  if (tensor.has_storage()) return tensor.storage().unsafeGetStorageImpl();
  const c10::StorageImpl* first = nullptr;
  for_each_part(tensor, [&](const c10::Storage& storage) {
    if (!first) first = storage.unsafeGetStorageImpl();
  });
  return first;
}

torch::Tensor strided_view(const torch::Tensor& whole, c10::IntArrayRef sizes,
                           c10::IntArrayRef strides, int64_t offset, bool is_conj, bool is_neg) {
  const torch::NoGradGuard no_grad;
  auto plain = whole;
  if (whole.is_conj() || whole.is_neg()) {
    plain = whole.tensor_data();
    plain._set_conj(false);
    plain._set_neg(false);
  }
  auto view = plain.as_strided(sizes, strides, offset);
  if (is_conj) view._set_conj(true);
  if (is_neg) view._set_neg(true);
  return view;
}

}  // namespace fleet::compat
