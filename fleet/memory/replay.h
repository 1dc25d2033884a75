#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fleet/memory/kept_value.h"
#include "fleet/memory/ledger.h"
#include "fleet/memory/op_record.h"

namespace fleet::memory {

class Region;

/// Calls those of `records`, which are the region's, again that make the `wanted` values, in their
/// order, starting from what is `at_hand` and what the region's surroundings keep.
void replay(const Region& region, const Ledger& ledger,
            const std::vector<std::shared_ptr<OpRecord>>& records,
            const std::vector<std::shared_ptr<KeptValue>>& wanted,
            const std::vector<std::shared_ptr<KeptValue>>& at_hand);

/// What replays did, so far in this process.
struct ReplayTotals {
  int64_t rebuilds = 0, ops = 0, stopped_early = 0;
  double seconds = 0;
};
ReplayTotals replay_totals();

/// Hears of replays on its thread.
class ReplayListener {
 public:
  virtual ~ReplayListener() = default;
  virtual void replayed(int op, double seconds) = 0;
  virtual void rebuilt(double seconds) = 0;

  /// Makes it the one of this thread; null for none.
  static ReplayListener* exchange(ReplayListener* listener);
};

}  // namespace fleet::memory
