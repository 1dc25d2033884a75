// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include <c10/core/Storage.h>
#include <torch/types.h>

#include "fleet/memory/tape/kept_value.h"
#include "fleet/memory/tape/provenance_table.h"

namespace fleet::memory {

class Region;

/// The tensors of the user's program in one forward and their storages, numbered as they are met.
/// The weak pointers keep addresses from being reused, and hold no data, so identity is exact.
class TapeValues {
 public:
  struct Value {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    torch::ScalarType dtype = torch::kFloat;
    bool is_strided = true;
    int64_t offset = 0;  // in its storage
    std::vector<std::weak_ptr<KeptValue>> kept = {};
    /// By the user's program: what autograd saved of it does not count.
    bool is_held() const { return tensor.use_count() > 0; }
  };
  struct Storage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Region* defining_region = nullptr;  // where its first value was computed; null: outside
    bool is_borrowed = false;       // may be freed before its last reader: see compat::owns_memory
    bool predates_forward = false;  // as far as ops tell
    bool has_undo_copy = false;     // a copy of it is in the WriteUndo
    int block = -1;                 // of the profile
    std::vector<int> values = {};   // if they are listed
  };

  /// `lists_values`: storages list their values.
  explicit TapeValues(bool lists_values)
      : lists_values_(lists_values), provenance_(std::make_shared<ProvenanceTable>()) {}

  /// The value in this tensor; a new one was made by `producer` in `defining_region`.
  int number_of(const torch::Tensor& tensor, int producer, Region* defining_region);
  /// -1: not met yet.
  int find(const c10::TensorImpl* tensor) const;
  int find_storage(const c10::StorageImpl* storage) const;
  /// An op wrote to this storage.
  void written(int storage, int op);

  int size() const { return static_cast<int>(values_.size()); }
  Value& operator[](int value) { return values_[static_cast<size_t>(value)]; }
  const Value& operator[](int value) const { return values_[static_cast<size_t>(value)]; }
  int storages() const { return static_cast<int>(storages_.size()); }
  Storage& storage(int id) { return storages_[static_cast<size_t>(id)]; }
  const Storage& storage(int id) const { return storages_[static_cast<size_t>(id)]; }
  const std::shared_ptr<ProvenanceTable>& provenance() const { return provenance_; }

  /// -1: it has none.
  int storage_id_of(int value) const { return provenance_->value(value).storage; }
  int producer_of(int value) const { return provenance_->value(value).producer; }
  bool is_borrowed(int value) const {
    const int id = storage_id_of(value);
    return id >= 0 && storage(id).is_borrowed;
  }
  /// How often its storage was written to.
  uint32_t version_of(int value) const;
  /// Null: it came from outside, or is not strided and is never recomputed.
  Region* defining_region_of(int value) const;

 private:
  int storage_id(const c10::StorageImpl* storage, int producer, Region* defining_region);

  bool lists_values_;
  std::shared_ptr<ProvenanceTable> provenance_;
  std::vector<Value> values_;
  std::vector<Storage> storages_;
  std::unordered_map<const c10::TensorImpl*, int> value_by_tensor_;
  std::unordered_map<const c10::StorageImpl*, int> id_by_storage_;
};

}  // namespace fleet::memory
