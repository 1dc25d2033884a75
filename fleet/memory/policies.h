#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fleet/memory/tape.h"

namespace fleet::memory {

/// Records, and gives nothing up.
class KeepAll final : public TapePolicy {
 public:
  Treatment treatment(int /*segment*/) override { return Treatment::kKeep; }
};

/// Ops before which a forward should not be cut, since something would be made before the cut and
/// changed in place behind it: learned in one forward, of use in the next.
class TiedOps {
 public:
  void tie(int made, int op) {
    if (op - made > kFar) return;  // such as a table that is filled row by row
    for (int i = made + 1; i <= op; ++i) ops_.insert(i);
  }
  bool contains(int op) const { return ops_.contains(op); }

 private:
  static constexpr int kFar = 32;
  std::set<int> ops_;
};

/// Finds the cuts itself: where the user's program holds no more than `live` pieces of memory made
/// since the last cut, once `bytes` have been saved. Between the layers of a net that is one.
class AutomaticCuts final : public TapePolicy {
 public:
  explicit AutomaticCuts(int64_t bytes, int live = 1,
                         std::shared_ptr<TiedOps> tied = std::make_shared<TiedOps>())
      : bytes_(bytes), live_(live), tied_(std::move(tied)) {}
  bool cut_before_op(const Tape& tape, const OpTraits& op) override {
    return !op.writes && cut_before_recompute(tape);
  }
  bool cut_before_recompute(const Tape& tape) override {
    return tape.segment_bytes() >= bytes_ && !tied_->contains(tape.next_op()) &&
           tape.live_in_segment(live_) <= live_;
  }
  void changes(int made, int op) override { tied_->tie(made, op); }

 private:
  int64_t bytes_;
  int live_;
  std::shared_ptr<TiedOps> tied_;
};

/// Cuts at `fleet::checkpoint` of the names given.
class NamedCuts : public TapePolicy {
 public:
  explicit NamedCuts(std::vector<std::string> names) : names_(names.begin(), names.end()) {}
  bool cut_at(std::string_view name) override {
    met_.emplace(name);
    return names_.contains(name);
  }
  /// All names that the forwards had so far.
  const std::set<std::string, std::less<>>& met() const { return met_; }
  const std::set<std::string, std::less<>>& names() const { return names_; }

 private:
  std::set<std::string, std::less<>> names_, met_;
};

}  // namespace fleet::memory
