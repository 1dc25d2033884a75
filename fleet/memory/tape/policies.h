// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fleet/memory/tape/tape.h"

namespace fleet::memory {

/// Records, and keeps everything.
class KeepAll final : public TapePolicy {
 public:
  Treatment treatment(int /*segment*/) override { return Treatment::kKeep; }
};

/// Keeps everything while memory lasts; then evicts what is recomputed most cheaply per byte and
/// read last. Needs no knowledge of the program.
class EvictOnDemand final : public TapePolicy {
 public:
  Treatment treatment(int /*segment*/) override { return Treatment::kEvictOnDemand; }
};

/// In-place constraints: ops before which a forward should not be cut, since a value would be made
/// before the cut and changed in place behind it. Learned in one forward, used in the next.
class InPlaceConstraints {
 public:
  void constrain(int made, int op) {
    if (op - made > kFar) return;  // such as a table filled row by row
    for (int i = made + 1; i <= op; ++i) ops_.insert(i);
  }
  bool contains(int op) const { return ops_.contains(op); }

 private:
  static constexpr int kFar = 32;
  std::set<int> ops_;
};

/// Finds the cut points itself: where the user's program holds no more than `live` storages made
/// since the last cut, once `bytes` have been saved. Between the layers of a net it holds one.
class AutomaticCuts final : public TapePolicy {
 public:
  explicit AutomaticCuts(
      int64_t bytes, int live = 1,
      std::shared_ptr<InPlaceConstraints> constraints = std::make_shared<InPlaceConstraints>())
      : bytes_(bytes), live_(live), constraints_(std::move(constraints)) {}
  bool cut_before_op(const Tape& tape, const OpTraits& op) override {
    return !op.writes && cut_before_recompute(tape);
  }
  bool cut_before_recompute(const Tape& tape) override {
    return tape.segment_bytes() >= bytes_ && !constraints_->contains(tape.next_op()) &&
           tape.live_in_segment(live_) <= live_;
  }
  void on_in_place_write(int made, int op) override { constraints_->constrain(made, op); }

 private:
  int64_t bytes_;
  int live_;
  std::shared_ptr<InPlaceConstraints> constraints_;
};

/// Cuts at `fleet::checkpoint` of the names given.
class NamedCuts : public TapePolicy {
 public:
  explicit NamedCuts(std::vector<std::string> names) : names_(names.begin(), names.end()) {}
  bool cut_at(std::string_view name) override {
    seen_.emplace(name);
    return names_.contains(name);
  }
  /// All names of the forwards so far.
  const std::set<std::string, std::less<>>& seen() const { return seen_; }
  const std::set<std::string, std::less<>>& names() const { return names_; }

 private:
  std::set<std::string, std::less<>> names_, seen_;
};

}  // namespace fleet::memory
