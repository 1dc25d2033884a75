// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "fleet/memory/plan/profile/step_profile.h"
#include "fleet/memory/replay/replay.h"

namespace fleet::memory {

/// What the recomputations of one step took: by op, and each beside its ops.
class ReplayTimes final : public ReplayObserver {
 public:
  void replayed(int op, double seconds, bool is_whole) override;
  void recomputed(double overhead) override;

  bool has(int op) const { return by_op_.contains(op); }
  /// Of all of them.
  double seconds() const { return seconds_; }

  /// Sets the replay times of all ops. Equal ops have the median of their replays. Where these are
  /// fewer than three, an estimate is one of the samples: `time` of the op, as much longer or
  /// shorter as the replays of its name were. Replays that ended early count only where none of the
  /// equal ops was replayed to its end.
  void write_into(StepProfile& profile, double StepProfile::Op::*time) const;

 private:
  struct Times {
    double seconds = 0;
    int count = 0;
    bool are_whole = false;  // of replays that ended early only where no other is known
    double mean() const { return seconds / count; }
  };
  std::map<int, Times> by_op_;
  std::vector<double> overheads_;
  double seconds_ = 0;
};

}  // namespace fleet::memory
