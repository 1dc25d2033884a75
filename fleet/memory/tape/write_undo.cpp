// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/write_undo.h"

#include "fleet/core/allocation_tag.h"
#include "fleet/memory/allocator/memory_counter.h"
#include "fleet/memory/tape/unrecorded_scope.h"

namespace fleet::memory {
namespace {

torch::Tensor storage_bytes(const c10::Storage& storage) {
  return torch::empty({0}, torch::TensorOptions(torch::kByte).device(storage.device()))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

}  // namespace

void WriteUndo::add(const torch::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  const UnrecordedScope unrecorded;
  const BudgetExemptScope bookkeeping;
  const AllocationTag tag(allocation::kBufferBackup);
  const auto& storage = tensor.storage();
  copies_.push_back({storage, storage_bytes(storage).clone()});
}

void WriteUndo::restore() {
  const UnrecordedScope unrecorded;
  for (const auto& [storage, bytes] : copies_) {
    if (static_cast<int64_t>(storage.nbytes()) == bytes.numel())
      storage_bytes(storage).copy_(bytes);
  }
  copies_.clear();
}

}  // namespace fleet::memory
