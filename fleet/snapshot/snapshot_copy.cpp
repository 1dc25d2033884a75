// SPDX-License-Identifier: Apache-2.0
#include "fleet/snapshot/snapshot_copy.h"

#include <algorithm>
#include <cstring>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/parallel_chunks.h"

namespace fleet {
namespace {

constexpr int64_t kGrainBytes = 1 << 20;  // less is not worth waking a thread

// Whole storages may be copied where they hold little else.
bool is_worth_mirroring(const torch::Tensor& tensor, int64_t bytes_in_use) {
  return tensor.is_cpu() && static_cast<int64_t>(tensor.storage().nbytes()) <= 2 * bytes_in_use;
}

}  // namespace

void SnapshotCopy::allocate(const Tensors& live, Tensors& copy) {
  for (const auto& [name, tensor] : live) copy.push_back({name, staging_for(tensor)});
}

torch::Tensor SnapshotCopy::staging_for(const torch::Tensor& live) {
  const auto buffer = staging_.find(live.storage().data());
  if (buffer == staging_.end()) return torch::zeros_like(live, torch::kCPU);
  return torch::empty({0}, live.options())
      .set_(buffer->second.bytes.storage(), live.storage_offset(), live.sizes(), live.strides());
}

void SnapshotCopy::take(const SnapshotTensors& live) {
  const torch::NoGradGuard no_grad;
  if (!is_made_) {
    const AllocationTag tag(allocation::kSnapshot);
    std::map<const void*, int64_t> in_use;
    for (const auto* list : {&live.model, &live.optimizer, &live.own}) {
      for (const auto& [name, tensor] : *list) {
        in_use[tensor.storage().data()] += static_cast<int64_t>(tensor.nbytes());
      }
    }
    for (const auto* list : {&live.model, &live.optimizer, &live.own}) {
      for (const auto& [name, tensor] : *list) {
        const void* const storage = tensor.storage().data();
        if (storage == nullptr || staging_.contains(storage) ||
            !is_worth_mirroring(tensor, in_use[storage])) {
          continue;
        }
        const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
        staging_[storage].bytes = torch::zeros({bytes}, torch::kByte);
      }
    }
    allocate(live.model, copy_.model);
    allocate(live.optimizer, copy_.optimizer);
    allocate(live.own, copy_.own);
    is_made_ = true;
  }
  for (auto& [storage, buffer] : staging_) buffer.from = nullptr;
  collect(live.model, copy_.model);
  collect(live.optimizer, copy_.optimizer);
  collect(live.own, copy_.own);
  copy_storages();
}

// Storages that tensors still have; a tensor that has moved since is copied by itself.
void SnapshotCopy::collect(const Tensors& live, const Tensors& copy) {
  FLEET_ASSERT(live.size() == copy.size(), "a model's tensors stay the same");
  for (size_t i = 0; i < live.size(); ++i) {
    const auto& storage = live[i].tensor.storage();
    const auto buffer = staging_.find(storage.data());
    const bool is_mirrored =
        buffer != staging_.end() &&
        static_cast<int64_t>(storage.nbytes()) == buffer->second.bytes.numel() &&
        buffer->second.bytes.storage().data() == copy[i].tensor.storage().data();
    if (is_mirrored) {
      buffer->second.from = static_cast<const char*>(buffer->first);
    } else {
      copy[i].tensor.copy_(live[i].tensor);
    }
  }
}

void SnapshotCopy::copy_storages() {
  for (const auto& [storage, buffer] : staging_) {
    if (buffer.from == nullptr) continue;
    auto* const to = static_cast<char*>(buffer.bytes.mutable_data_ptr());
    const auto* const from = buffer.from;
    parallel_ranges(buffer.bytes.numel(), kGrainBytes, [=](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
  }
}

}  // namespace fleet
