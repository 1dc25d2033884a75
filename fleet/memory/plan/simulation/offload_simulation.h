// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fleet/memory/offload/offload_file.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/step_profile.h"

namespace fleet::memory {

/// What a plan would offload of a measured step to a disk of such speed, when, and how long the
/// step would wait for it.
class OffloadSimulation {
 public:
  /// Nothing is offloaded to a disk whose speed is not known.
  OffloadSimulation(const StepProfile& profile, OffloadFile::Speed disk)
      : profile_(profile), disk_(disk) {}

  /// Whether a block can be offloaded. `end`: of the segment that made it; what later ones write to
  /// is not kept by the tape.
  bool may_offload(int block, int end) const;

  /// What is offloaded at one cut.
  struct Wave {
    int cut = 0;  // offloaded from this op's forward on, and freed before that of `gone`
    int gone = 0;
    int64_t bytes = 0;
    int asked = -1;  // the first op whose backward needs some of it
    int comes = 0;   // prefetched from this op's backward on
    std::vector<int> blocks;
  };
  /// By block: the op whose backward is the last to need it, and the first; kNever for one that is
  /// not held.
  std::vector<Wave> waves_of(const Plan& plan, const std::vector<int>& held_until,
                             const std::vector<int>& asked) const;
  /// How long the step waits for the disk, which does one thing after another. `replay_seconds` by
  /// op.
  double stall_seconds(const std::vector<Wave>& waves,
                       const std::vector<double>& replay_seconds) const;
  /// For so many bytes of an interval that takes so long, as if its neighbours were like it: writes
  /// and reads have as long as the interval itself.
  double stall_seconds(int64_t bytes, double forward_seconds, double backward_seconds) const;
  /// What the step loses although nothing waits: the threads of an op wait for the one that shares
  /// its core with the I/O thread.
  double lost_seconds(int64_t bytes) const;

 private:
  const StepProfile& profile_;
  OffloadFile::Speed disk_;
};

}  // namespace fleet::memory
