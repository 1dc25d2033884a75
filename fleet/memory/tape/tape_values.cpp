// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/tape_values.h"

#include <c10/core/TensorImpl.h>

#include "fleet/core/tensor_memory.h"
#include "fleet/memory/tape/tensor_storage.h"

namespace fleet::memory {
namespace {

template <typename Key>
int find_in(const std::unordered_map<const Key*, int>& numbers, const Key* key) {
  const auto place = numbers.find(key);
  return place == numbers.end() ? -1 : place->second;
}

}  // namespace

int TapeValues::storage_id(const c10::StorageImpl* storage, int producer, Region* defining_region) {
  const auto id = static_cast<int>(storages_.size());
  const auto [place, is_new] = id_by_storage_.try_emplace(storage, id);
  if (is_new) {
    auto* const impl = const_cast<c10::StorageImpl*>(storage);
    storages_.push_back(
        {.storage = decltype(Storage::storage)(
             c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl)),
         .defining_region = defining_region,
         .is_borrowed = !defining_region && !compat::owns_memory(*storage),
         .predates_forward = producer < 0});
    provenance_->writers.emplace_back();
  }
  return place->second;
}

int TapeValues::number_of(const torch::Tensor& tensor, int producer, Region* defining_region) {
  const int number = size();
  const auto* const storage = compat::storage_written_to(tensor);
  const auto [place, is_new] = value_by_tensor_.try_emplace(tensor.unsafeGetTensorImpl(), number);
  if (!is_new) {
    const int id = storage_id_of(place->second);
    const bool same = id < 0 || this->storage(id).storage._unsafe_get_target() == storage;
    if (same) return place->second;
    place->second = number;  // set_data, swap: another value in the same tensor
    producer = -1;
    defining_region = nullptr;
  }
  const bool strided = is_strided(tensor);
  if (!strided) defining_region = nullptr;
  values_.push_back({.tensor = decltype(Value::tensor)(tensor.getIntrusivePtr()),
                     .dtype = tensor.scalar_type(),
                     .is_strided = strided,
                     .offset = strided ? tensor.storage_offset() : 0});
  const int id = storage ? storage_id(storage, producer, defining_region) : -1;
  if (!tensor.has_storage()) {
    compat::for_each_part(tensor, [&](const c10::Storage& part) {
      storage_id(part.unsafeGetStorageImpl(), producer, nullptr);
    });
  }
  provenance_->values.push_back({.producer = producer, .storage = id});
  if (lists_values_ && id >= 0) this->storage(id).values.push_back(number);
  return number;
}

int TapeValues::find(const c10::TensorImpl* tensor) const {
  return find_in(value_by_tensor_, tensor);
}

int TapeValues::find_storage(const c10::StorageImpl* storage) const {
  return find_in(id_by_storage_, storage);
}

void TapeValues::written(int storage, int op) {
  auto& writers = provenance_->writers[static_cast<size_t>(storage)];
  if (writers.empty() || writers.back() != op) writers.push_back(op);
}

uint32_t TapeValues::version_of(int value) const {
  const int id = storage_id_of(value);
  return id < 0 ? 0 : static_cast<uint32_t>(provenance_->writers_of(id).size());
}

Region* TapeValues::defining_region_of(int value) const {
  const auto& entry = provenance_->value(value);
  if (entry.storage < 0 || entry.producer < 0 || !(*this)[value].is_strided) return nullptr;
  return storage(entry.storage).defining_region;
}

}  // namespace fleet::memory
