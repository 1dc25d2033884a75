#include "fleet/memory/departures.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fleet/memory/off_the_record.h"
#include "fleet/memory/tensor_storage.h"

namespace fleet::memory {

void Departures::segment_ended(std::shared_ptr<Region> segment, int first_value, bool sends_out) {
  ended_ = std::move(segment);
  if (!sends_out) return;
  for (int value = first_value; value < values_.size(); ++value) {
    if (values_.home_of(value)) may_leave_.insert(values_.memory_of(value));
  }
}

void Departures::send() {
  const OffTheRecord quiet;
  const auto ended = std::exchange(ended_, nullptr);
  const auto wave = std::make_shared<AwayWave>();
  offload_.drain(offload_.max_queued);
  std::erase_if(may_leave_, [&](int number) {
    const auto& memory = values_.memory(number);
    const auto storage = memory.storage.lock();
    if (!storage || !memory.home) return true;
    if (!offload_.takes(*storage)) {
      offload_.largest_small =
          std::max(offload_.largest_small, static_cast<int64_t>(storage->nbytes()));
      return true;
    }
    if (ended->contains(memory.home)) return false;
    std::vector<std::shared_ptr<KeptValue>> held;
    for (const int value : memory.values) {
      for (const auto& weak : values_[value].kept) {
        auto kept = weak.lock();
        // One that was written to since has moved out already.
        if (!kept || !kept->is_here()) continue;
        if (compat::storage_written_to(kept->tensor()) != storage.get()) continue;
        if (kept->region() || !kept->is_intact() || !is_strided(kept->tensor())) return false;
        held.push_back(std::move(kept));
      }
    }
    if (held.empty() || storage.use_count() != held.size() + 1) return false;
    const auto away = offload_.send(c10::Storage(storage), wave);
    for (const auto& kept : held) kept->leave(away);
    return true;
  });
  if (offload_.waits) offload_.drain(0);
  if (wave->members.empty()) return;
  wave->before = std::exchange(wave_, wave);
}

// Fetches ahead what backward comes to after the last segments.
void Departures::forward_ended() {
  if (wave_) wave_->prefetch();
}

}  // namespace fleet::memory
