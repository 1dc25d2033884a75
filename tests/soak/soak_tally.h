// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "fleet/core/seconds_since.h"

#include "tests/soak/made_updates.h"
#include "tests/soak/soak.h"

namespace fleet::launch {

/// The jobs of a soak so far, and the row that they make.
class SoakTally {
 public:
  explicit SoakTally(const SoakOptions& options) : options_(options) {}

  int tried = 0;                     // faults
  std::map<std::string, int> kinds;  // of them; empty: there is one

  /// Further faults are wanted, and there is time for a job.
  bool wants_more() const {
    return tried < options_.count && seconds_since(begin_) < options_.seconds;
  }
  int jobs() const { return jobs_; }

  /// `problem`: empty: it ended as the undisturbed one.
  void add_job(const MadeUpdates& updates, int starts_by_hand, const std::string& problem) {
    ++jobs_;
    equal_ += problem.empty() ? 1 : 0;
    starts_by_hand_ += starts_by_hand;
    useful_ += updates.useful();
    repeated_ += updates.repeated();
    if (!problem.empty()) problems_.push_back(problem);
  }

  Row row(const std::string& setup) const {
    Row row = {{"setup", setup}, {"tried", tried}};
    if (!kinds.empty()) row["kinds"] = kinds;
    row["jobs"] = jobs_;
    row["jobs_as_undisturbed"] = equal_;
    row["starts_by_hand"] = starts_by_hand_;
    row["updates"] = useful_;
    row["repeated"] = repeated_;
    row["problems"] = problems_;
    return row;
  }

 private:
  const SoakOptions& options_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int jobs_ = 0, equal_ = 0, starts_by_hand_ = 0;
  int64_t useful_ = 0, repeated_ = 0;
  Row problems_ = Row::array();
};

}  // namespace fleet::launch
