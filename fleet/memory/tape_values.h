#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include <c10/core/Storage.h>
#include <torch/types.h>

#include "fleet/memory/kept_value.h"
#include "fleet/memory/ledger.h"

namespace fleet::memory {

class Region;

/// Who is who in one forward: the tensors of the user's program and the memory in which they lie,
/// numbered as they are met. The weak pointers hold addresses, not data, so identity is exact.
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
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Region* home = nullptr;        // where its first value was made; null: outside
    bool is_borrowed = false;      // may be freed before whoever reads it: see compat::owns_memory
    int block = -1;                // of the profile
    std::vector<int> values = {};  // where they are listed
  };

  /// `lists_values`: memories list their values.
  explicit TapeValues(bool lists_values)
      : lists_values_(lists_values), ledger_(std::make_shared<Ledger>()) {}

  /// The value in this tensor; a new one was made by `producer` in the region `home`.
  int number_of(const torch::Tensor& tensor, int producer, Region* home);
  /// -1: not met yet.
  int find(const c10::TensorImpl* tensor) const;
  int find_memory(const c10::StorageImpl* storage) const;
  /// An op wrote to a memory.
  void written(int memory, int op);

  int size() const { return static_cast<int>(values_.size()); }
  Value& operator[](int value) { return values_[static_cast<size_t>(value)]; }
  const Value& operator[](int value) const { return values_[static_cast<size_t>(value)]; }
  Memory& memory(int number) { return memories_[static_cast<size_t>(number)]; }
  const Memory& memory(int number) const { return memories_[static_cast<size_t>(number)]; }
  const std::shared_ptr<Ledger>& ledger() const { return ledger_; }

  /// -1: it has none.
  int memory_of(int value) const { return ledger_->value(value).memory; }
  int producer_of(int value) const { return ledger_->value(value).producer; }
  bool is_borrowed(int value) const {
    const int memory = memory_of(value);
    return memory >= 0 && this->memory(memory).is_borrowed;
  }
  /// How often its memory was written to.
  uint32_t version_of(int value) const;
  /// Null: it came from outside, or is more than strides over memory and stays as it is.
  Region* home_of(int value) const;

 private:
  int memory_number(const c10::StorageImpl* storage, Region* home);

  bool lists_values_;
  std::shared_ptr<Ledger> ledger_;
  std::vector<Value> values_;
  std::vector<Memory> memories_;
  std::unordered_map<const c10::TensorImpl*, int> value_by_tensor_;
  std::unordered_map<const c10::StorageImpl*, int> memory_by_storage_;
};

}  // namespace fleet::memory
