// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fleet/memory/tape/policies.h"
#include "fleet/memory/tape/tape.h"

namespace fleet::memory {

/// What becomes of the values of one forward, op by op. Made by `make_plan`, followed by
/// PlannedPolicy.
struct Plan {
  struct Segment {
    int first_op = 0;
    bool is_dropped = false;    // evicted eagerly, and recomputed in backward
    bool is_offloaded = false;  // what it made and holds is offloaded
  };
  std::vector<Segment> segments;  // in order, the first at op 0
  std::vector<char> recomputed;   // by op: whether its results are recomputed selectively
  std::vector<std::string> ops;   // by name, to notice that the program differs

  int64_t budget = 0;
  int64_t predicted_peak = 0;  // counted bytes, parameters included
  double predicted_seconds = 0;
  int64_t offloaded_bytes = 0;
  double stall_seconds = 0;  // of predicted_seconds, waiting for the disk
  int64_t plain_peak = 0;    // if everything was kept
  double plain_seconds = 0;

  /// "24 of 49 segments recomputed, results of 12 ops recomputed selectively", and what is
  /// offloaded.
  std::string describe() const;
};

/// Follows a plan. A cut inside a call of `fleet::recompute` is made behind it. If the program
/// calls other ops than planned, the rest is one segment whose values are evicted on demand, and
/// `has_diverged` is true.
class PlannedPolicy final : public TapePolicy {
 public:
  explicit PlannedPolicy(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}

  bool cut_before_op(const Tape& tape, const OpTraits& op) override;
  bool cut_before_recompute(const Tape& tape) override;
  Treatment treatment(int segment) override;
  bool offloads(int segment) override;
  bool recomputes_results_of(const OpRecord& op) override;
  bool has_diverged() const { return has_diverged_; }

 private:
  std::shared_ptr<const Plan> plan_;
  bool is_due(const Tape& tape);

  size_t segment_ = 0;                  // of the plan
  std::vector<size_t> followed_ = {0};  // by segment of the tape
  bool has_diverged_ = false;
};

}  // namespace fleet::memory
