// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <torch/types.h>

namespace fleet::memory {

class KeptValue;

/// Called before an op writes to `tensor`: replay inputs that it overlaps get copies. Others in the
/// same storage, such as parameters of one arena, do not.
void copy_on_write(const torch::Tensor& tensor);
/// Called after that op: replay inputs beside `tensor` may share its version counter, and are
/// unchanged.
void after_write(const torch::Tensor& tensor);

/// The replay inputs of all graphs in this process, by the storage that they share with the user's
/// tensors. For the whole process, since a second forward may write to a buffer that a replay of
/// the first one reads. Thread-safe.
class ReplayInputs {
 public:
  static ReplayInputs& get();

  void add(const c10::StorageImpl* storage, const std::shared_ptr<KeptValue>& kept);
  void remove(const c10::StorageImpl* storage, const KeptValue* kept);
  std::vector<std::shared_ptr<KeptValue>> in(const c10::StorageImpl* storage);
  int64_t size();

 private:
  struct Entry {
    const KeptValue* kept;  // still valid in its destructor, when `weak` has expired
    std::weak_ptr<KeptValue> weak;
  };
  std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, std::vector<Entry>> by_storage_;
  int64_t size_ = 0;
};

}  // namespace fleet::memory
