#pragma once

#include <c10/core/Storage.h>
#include <torch/types.h>

#include "fleet/core/torch_compat.h"

namespace fleet::memory {

inline bool is_strided(const torch::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == torch::kStrided;
}

inline const c10::StorageImpl* storage_of(const torch::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

/// All of a piece of memory, as bytes, unseen by autograd and by whoever records ops.
inline torch::Tensor bytes_of(const c10::Storage& storage) {
  const compat::NoInterceptScope engine;
  const torch::NoGradGuard no_grad;
  return torch::empty({0}, torch::TensorOptions(torch::kByte).device(storage.device()))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

}  // namespace fleet::memory
