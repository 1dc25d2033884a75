// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fleet/memory/tape/kept_value.h"

namespace fleet::memory {

class ReplayNeed;

/// Calls the ops that are `needed`, in their order, and refills the `wanted` values, starting from
/// what is available and from the replay inputs of other regions.
void replay(const ReplayNeed& needed, const std::vector<std::shared_ptr<KeptValue>>& wanted);

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
