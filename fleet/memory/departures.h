#pragma once

#include <memory>
#include <set>

#include "fleet/memory/away_memory.h"
#include "fleet/memory/region.h"
#include "fleet/memory/tape_values.h"

namespace fleet::memory {

/// Sends what a forward made out to where its Offload says, cut by cut: memory that was made before
/// the segment that ended last, and that nobody but backward holds.
class Departures {
 public:
  Departures(const Offload& offload, const TapeValues& values)
      : offload_(offload), values_(values) {}

  /// A segment has ended. Its values are those from `first_value` on; they may leave if it
  /// `sends_out`.
  void segment_ended(std::shared_ptr<Region> segment, int first_value, bool sends_out);
  /// Whether one has ended since `send`.
  bool are_due() const { return ended_ != nullptr; }
  /// To be called when the next op comes, since `x = checkpoint(layer(x), "name")` still holds the
  /// old x while it cuts.
  void send();
  void forward_ended();

 private:
  const Offload& offload_;
  const TapeValues& values_;
  std::set<int> may_leave_;         // memories
  std::shared_ptr<Region> ended_;   // a segment, since which nothing was sent out
  std::shared_ptr<AwayWave> wave_;  // what left last
};

}  // namespace fleet::memory
