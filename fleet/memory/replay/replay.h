// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "fleet/memory/tape/kept_value.h"

namespace fleet::memory {

class ReplayNeed;

/// Calls the ops that are `needed`, in their order, and refills the `wanted` values, starting from
/// what is available and from the replay inputs of other regions. `began`: when the recomputation
/// did that it is part of.
void replay(const ReplayNeed& needed, const std::vector<std::shared_ptr<KeptValue>>& wanted,
            std::chrono::steady_clock::time_point began);

/// These seconds of the calling thread, for an eviction, do not count as time of a replay.
void leave_out_of_replay(double seconds);

/// All replays so far in this process.
struct ReplayTotals {
  int64_t recomputations = 0, ops = 0, stopped_early = 0;
  double seconds = 0;
};
ReplayTotals replay_totals();

/// Is told of replays on its thread. Times are without evictions, and without what an op's inputs
/// took that other regions recompute meanwhile, which are told by themselves.
class ReplayObserver {
 public:
  virtual ~ReplayObserver() = default;
  /// `is_whole`: to its end; false if only what it saves at its beginning was wanted.
  virtual void replayed(int op, double seconds, bool is_whole) = 0;
  /// A recomputation ended; `overhead`: its seconds beside the ops'.
  virtual void recomputed(double overhead) = 0;

  /// Installs it for this thread; null for none. Returns the one before.
  static ReplayObserver* exchange(ReplayObserver* observer);
};

}  // namespace fleet::memory
