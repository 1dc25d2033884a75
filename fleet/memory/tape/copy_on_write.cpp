// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/copy_on_write.h"

#include <utility>

#include "fleet/core/tensor_memory.h"
#include "fleet/memory/tape/kept_value.h"
#include "fleet/memory/tape/tensor_storage.h"

namespace fleet::memory {

ReplayInputs& ReplayInputs::get() {
  static auto* const inputs = new ReplayInputs();
  return *inputs;
}

void ReplayInputs::add(const c10::StorageImpl* storage, const std::shared_ptr<KeptValue>& kept) {
  const std::scoped_lock lock(mutex_);
  by_storage_[storage].push_back({.kept = kept.get(), .weak = kept});
  ++size_;
}

void ReplayInputs::remove(const c10::StorageImpl* storage, const KeptValue* kept) {
  const std::scoped_lock lock(mutex_);
  const auto place = by_storage_.find(storage);
  if (place == by_storage_.end()) return;
  size_ -= static_cast<int64_t>(
      std::erase_if(place->second, [&](const Entry& entry) { return entry.kept == kept; }));
  if (place->second.empty()) by_storage_.erase(place);
}

std::vector<std::shared_ptr<KeptValue>> ReplayInputs::in(const c10::StorageImpl* storage) {
  std::vector<std::shared_ptr<KeptValue>> found;
  const std::scoped_lock lock(mutex_);
  const auto place = by_storage_.find(storage);
  if (place == by_storage_.end()) return found;
  for (const auto& entry : place->second) {
    if (auto kept = entry.weak.lock()) found.push_back(std::move(kept));
  }
  return found;
}

int64_t ReplayInputs::size() {
  const std::scoped_lock lock(mutex_);
  return size_;
}

void copy_on_write(const torch::Tensor& tensor) {
  const auto* const storage = compat::storage_written_to(tensor);
  if (!storage) return;
  const auto inputs = ReplayInputs::get().in(storage);
  if (inputs.empty()) return;
  const bool is_partial = is_strided(tensor);
  for (const auto& kept : inputs) {
    if (!kept->is_intact()) {
      kept->set_lost();
    } else if (!is_partial || !is_strided(kept->tensor()) || may_overlap(kept->tensor(), tensor)) {
      kept->copy_to_own_memory();
    }
  }
}

void after_write(const torch::Tensor& tensor) {
  const auto* const storage = compat::storage_written_to(tensor);
  if (!storage) return;
  for (const auto& kept : ReplayInputs::get().in(storage)) kept->accept_version();
}

}  // namespace fleet::memory
