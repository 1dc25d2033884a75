#include "fleet/memory/tape_values.h"

#include <c10/core/TensorImpl.h>

#include "fleet/core/tensor_memory.h"
#include "fleet/memory/tensor_storage.h"

namespace fleet::memory {
namespace {

template <typename Key>
int find_in(const std::unordered_map<const Key*, int>& numbers, const Key* key) {
  const auto place = numbers.find(key);
  return place == numbers.end() ? -1 : place->second;
}

}  // namespace

int TapeValues::memory_number(const c10::StorageImpl* storage, Region* home) {
  const auto number = static_cast<int>(memories_.size());
  const auto [place, is_new] = memory_by_storage_.try_emplace(storage, number);
  if (is_new) {
    auto* const impl = const_cast<c10::StorageImpl*>(storage);
    memories_.push_back(
        {.storage = decltype(Memory::storage)(
             c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl)),
         .home = home,
         .is_borrowed = !home && !compat::owns_memory(*storage)});
    ledger_->writers.emplace_back();
  }
  return place->second;
}

int TapeValues::number_of(const torch::Tensor& tensor, int producer, Region* home) {
  const int number = size();
  const auto* const storage = compat::storage_written_to(tensor);
  const auto [place, is_new] = value_by_tensor_.try_emplace(tensor.unsafeGetTensorImpl(), number);
  if (!is_new) {
    const int memory = memory_of(place->second);
    const bool same = memory < 0 || this->memory(memory).storage._unsafe_get_target() == storage;
    if (same) return place->second;
    place->second = number;  // set_data, swap: another value in the same tensor
    producer = -1;
    home = nullptr;
  }
  const bool strided = is_strided(tensor);
  if (!strided) home = nullptr;
  values_.push_back({.tensor = decltype(Value::tensor)(tensor.getIntrusivePtr()),
                     .dtype = tensor.scalar_type(),
                     .is_strided = strided,
                     .offset = strided ? tensor.storage_offset() : 0});
  const int memory = storage ? memory_number(storage, home) : -1;
  if (!tensor.has_storage()) {
    compat::for_each_part(tensor, [&](const c10::Storage& part) {
      memory_number(part.unsafeGetStorageImpl(), nullptr);
    });
  }
  ledger_->values.push_back({.producer = producer, .memory = memory});
  if (lists_values_ && memory >= 0) this->memory(memory).values.push_back(number);
  return number;
}

int TapeValues::find(const c10::TensorImpl* tensor) const {
  return find_in(value_by_tensor_, tensor);
}

int TapeValues::find_memory(const c10::StorageImpl* storage) const {
  return find_in(memory_by_storage_, storage);
}

void TapeValues::written(int memory, int op) {
  auto& writers = ledger_->writers[static_cast<size_t>(memory)];
  if (writers.empty() || writers.back() != op) writers.push_back(op);
}

uint32_t TapeValues::version_of(int value) const {
  const int memory = memory_of(value);
  return memory < 0 ? 0 : static_cast<uint32_t>(ledger_->writers_of(memory).size());
}

Region* TapeValues::home_of(int value) const {
  const auto& entry = ledger_->value(value);
  if (entry.memory < 0 || entry.producer < 0 || !(*this)[value].is_strided) return nullptr;
  return memory(entry.memory).home;
}

}  // namespace fleet::memory
