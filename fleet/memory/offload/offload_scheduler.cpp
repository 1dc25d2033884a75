// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/offload_scheduler.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fleet/memory/tape/tensor_storage.h"
#include "fleet/memory/tape/unrecorded_scope.h"

namespace fleet::memory {

void OffloadScheduler::segment_ended(std::shared_ptr<Region> segment, int first_value,
                                     bool offloads) {
  ended_ = std::move(segment);
  if (!offloads) return;
  for (int value = first_value; value < values_.size(); ++value) {
    if (values_.defining_region_of(value)) candidates_.insert(values_.storage_id_of(value));
  }
}

void OffloadScheduler::offload() {
  const UnrecordedScope unrecorded;
  const auto ended = std::exchange(ended_, nullptr);
  const auto wave = std::make_shared<OffloadWave>();
  offload_.drain(offload_.max_queued);
  std::erase_if(candidates_, [&](int id) {
    const auto& entry = values_.storage(id);
    const auto storage = entry.storage.lock();
    if (!storage || !entry.defining_region) return true;
    if (!offload_.should_offload(*storage)) {
      offload_.largest_small =
          std::max(offload_.largest_small, static_cast<int64_t>(storage->nbytes()));
      return true;
    }
    if (ended->contains(entry.defining_region)) return false;
    std::vector<std::shared_ptr<KeptValue>> held;
    for (const int value : entry.values) {
      for (const auto& weak : values_[value].kept) {
        auto kept = weak.lock();
        // One that was written to since has its own copy.
        if (!kept || !kept->is_resident()) continue;
        if (compat::storage_written_to(kept->tensor()) != storage.get()) continue;
        if (kept->region() || !kept->is_intact() || !is_strided(kept->tensor())) return false;
        held.push_back(std::move(kept));
      }
    }
    if (held.empty() || storage.use_count() != held.size() + 1) return false;
    const auto offloaded = offload_.offload(c10::Storage(storage), wave);
    for (const auto& kept : held) kept->offload(offloaded);
    return true;
  });
  if (offload_.is_synchronous) offload_.drain(0);
  if (wave->members.empty()) return;
  wave->before = std::exchange(wave_, wave);
}

// Prefetches what backward needs after the last segments.
void OffloadScheduler::forward_ended() {
  if (wave_) wave_->prefetch();
}

}  // namespace fleet::memory
