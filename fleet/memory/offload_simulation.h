#pragma once

#include <cstdint>
#include <vector>

#include "fleet/memory/offload_file.h"
#include "fleet/memory/plan.h"
#include "fleet/memory/step_profile.h"

namespace fleet::memory {

/// What of a measured step would leave for a disk of such speed by a plan, when, and what the step
/// would wait for it.
class OffloadSimulation {
 public:
  /// A disk that is not known takes nothing.
  OffloadSimulation(const StepProfile& profile, OffloadFile::Speed disk)
      : profile_(profile), disk_(disk) {}

  /// Whether a block can. `end` of the segment that made it: what later ones write to is no longer
  /// the tape's.
  bool may_leave(int block, int end) const;

  /// What leaves at one cut.
  struct Wave {
    int cut = 0;  // leaves before this op's forward, and is gone before that of `gone`
    int gone = 0;
    int64_t bytes = 0;
    int asked = -1;  // the first op whose backward needs some of it
    int comes = 0;   // starts to come back at this op's backward
    std::vector<int> blocks;
  };
  /// By block: the op whose backward is the last to need it, and the first; kNever for one that is
  /// not held.
  std::vector<Wave> waves_of(const Plan& plan, const std::vector<int>& held_until,
                             const std::vector<int>& asked) const;
  /// What the step waits for the disk, which does one thing after another. `replay_seconds` by op.
  double stall_seconds(const std::vector<Wave>& waves,
                       const std::vector<double>& replay_seconds) const;
  /// Of so many bytes from a stretch of the step that takes so long, as if its neighbours were like
  /// it: what leaves has as long as it takes itself.
  double stall_seconds(int64_t bytes, double forward_seconds, double backward_seconds) const;
  /// What the step loses although nothing waits: the threads of an op wait for the one whose core
  /// the disk's thread takes.
  double lost_seconds(int64_t bytes) const;

 private:
  const StepProfile& profile_;
  OffloadFile::Speed disk_;
};

}  // namespace fleet::memory
