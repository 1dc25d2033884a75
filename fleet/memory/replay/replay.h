// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fleet/memory/tape/kept_value.h"
#include "fleet/memory/tape/op_record.h"
#include "fleet/memory/tape/provenance_table.h"

namespace fleet::memory {

class Region;

/// Calls those of the region's `records` that the `wanted` values need, in their order, starting
/// from the `available` values and from the replay inputs of other regions.
void replay(const Region& region, const ProvenanceTable& provenance,
            const std::vector<std::shared_ptr<OpRecord>>& records,
            const std::vector<std::shared_ptr<KeptValue>>& wanted,
            const std::vector<std::shared_ptr<KeptValue>>& available);

/// All replays so far in this process.
struct ReplayTotals {
  int64_t recomputations = 0, ops = 0, stopped_early = 0;
  double seconds = 0;
};
ReplayTotals replay_totals();

/// Is told of replays on its thread.
class ReplayObserver {
 public:
  virtual ~ReplayObserver() = default;
  virtual void replayed(int op, double seconds) = 0;
  virtual void recomputed(double seconds) = 0;

  /// Installs it for this thread; null for none. Returns the one before.
  static ReplayObserver* exchange(ReplayObserver* observer);
};

}  // namespace fleet::memory
