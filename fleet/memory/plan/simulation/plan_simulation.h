// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fleet/memory/offload/offload_file.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/step_profile.h"
#include "fleet/memory/plan/simulation/offload_simulation.h"
#include "fleet/memory/plan/simulation/segment_outcome.h"
#include "fleet/memory/tape/policies.h"

namespace fleet::memory {

/// Predicts memory and time of a measured step under a plan, by the rules of the tape. Not
/// thread-safe: it remembers segments.
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
  /// Writes the prediction into the plan too.
  Prediction predict_into(Plan& plan) const;

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
  /// The op whose backward is the last to hold what the backward of `op` was the last to need.
  /// Where the graph is kept it stays until the first one is over, where memory is highest.
  int released_at(int op, int begin = 0) const { return profile_.graph.is_kept ? begin : op; }

  using Outcomes = std::vector<std::shared_ptr<const SegmentOutcome>>;
  struct Lifetimes;  // from when to when the blocks of a plan are held
  std::shared_ptr<const SegmentOutcome> outcome_of(const Plan& plan, size_t segment) const;
  Lifetimes lifetimes_of(const Outcomes& outcomes) const;

  const StepProfile& profile_;
  OffloadSimulation offload_;
  std::vector<int64_t> alive_, saved_;
  InPlaceConstraints constraints_;
  std::vector<int> last_use_;  // by block: the last op that reads or saves it
  // What is known about segments, by their ops and what is recomputed of them: plans that differ in
  // one segment share all others.
  mutable SegmentSimulation segments_;
  mutable std::unordered_map<std::string, std::shared_ptr<const SegmentOutcome>> known_;
  mutable int64_t known_ops_ = 0;
};

}  // namespace fleet::memory
