// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "fleet/memory/plan/offload_simulation.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/step_profile.h"
#include "fleet/memory/tape/policies.h"

namespace fleet::memory {

/// Predicts memory and time of a measured step under a plan, by the rules of the tape.
class PlanSimulation {
 public:
  explicit PlanSimulation(const StepProfile& profile, OffloadFile::Speed disk = {});

  struct Prediction {
    int64_t peak = 0;
    double seconds = 0;  // of the step
    int64_t offloaded_bytes_total = 0;
    double stall_seconds = 0;  // of `seconds`, waiting for the disk
    // Bytes before and in each op's forward, then in each op's backward, the last op first.
    std::vector<int64_t> forward, backward;
  };
  Prediction predict(const Plan& plan) const;

  /// The ops [begin, end) by themselves; see ChainEdge.
  struct Interval {
    int64_t held = 0;
    int64_t need = 0;
    double seconds = 0;
    int64_t may_offload = 0;     // of what is held
    double offload_seconds = 0;  // what that takes
  };
  Interval interval(int begin, int end, bool is_dropped, const std::vector<char>& recomputed) const;

  /// Bytes made by the forward that the user's program holds when this op begins.
  int64_t alive_before(int op) const { return alive_[static_cast<size_t>(op)]; }
  /// Saved by ops before this one, each block once.
  int64_t saved_before(int op) const { return saved_[static_cast<size_t>(op)]; }
  /// No cut comes before this op: it would separate a value from an op that changes it in place,
  /// and neither could be recomputed; or the op is inside of `fleet::recompute`.
  bool has_in_place_constraint(int op) const {
    return constraints_.contains(op) || profile_.ops[static_cast<size_t>(op)].is_inside_recompute;
  }

 private:
  enum class Fate : char { kNone, kHeld, kRegion, kSelective };
  struct Fates;           // of the blocks of an interval
  struct SelectiveValue;  // a value that is recomputed selectively
  struct Graph;           // what a RecomputeSearch sees of the profile
  template <typename F>
  static void add_selective(const std::vector<SelectiveValue>& values, int begin, F&& add);
  void follow(int begin, int end, bool is_dropped, const std::vector<char>& recomputed,
              Fates& fates) const;
  void add_to_replay(int block, int begin, const Fates& fates, std::vector<int64_t>& replay) const;

  const StepProfile& profile_;
  OffloadSimulation offload_;
  std::vector<int64_t> alive_, saved_;
  InPlaceConstraints constraints_;
  std::vector<int> last_use_;  // by block: the last op that reads or saves it
};

}  // namespace fleet::memory
