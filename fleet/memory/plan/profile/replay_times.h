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
  void replayed(int op, double seconds) override;
  void recomputed(double overhead) override;

  bool has(int op) const { return by_op_.contains(op); }
  /// Of all of them.
  double seconds() const { return seconds_; }

  /// Sets the replay times of these ops. Those of all others are estimated: `time` of an op that
  /// was not replayed becomes as much longer or shorter as that of the replayed ones of its name.
  void write_into(StepProfile& profile, double StepProfile::Op::*time) const;

 private:
  struct Times {
    double seconds = 0;
    int count = 0;
  };
  std::map<int, Times> by_op_;
  std::vector<double> overheads_;
  double seconds_ = 0;
};

}  // namespace fleet::memory
