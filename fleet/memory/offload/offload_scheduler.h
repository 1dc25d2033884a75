// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>

#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/tape/tape_values.h"

namespace fleet::memory {

/// Offloads what a forward made, cut by cut: storages that were made before the segment that ended
/// last, and that only backward holds.
class OffloadScheduler {
 public:
  OffloadScheduler(const Offload& offload, const TapeValues& values)
      : offload_(offload), values_(values) {}

  /// A segment has ended. Its values are those from `first_value` on; they are candidates if it
  /// `offloads`.
  void segment_ended(std::shared_ptr<Region> segment, int first_value, bool offloads);
  /// Whether one has ended since the last `offload`.
  bool is_due() const { return ended_ != nullptr; }
  /// To be called before the next op, since `x = checkpoint(layer(x), "name")` still holds the old
  /// x while it cuts.
  void offload();
  void forward_ended();

 private:
  const Offload& offload_;
  const TapeValues& values_;
  std::set<int> candidates_;           // storage ids
  std::shared_ptr<Region> ended_;      // the last segment, until `offload`
  std::shared_ptr<OffloadWave> wave_;  // what was offloaded last
};

}  // namespace fleet::memory
