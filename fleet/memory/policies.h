#pragma once

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

/// Finds the cuts itself: where the user's program holds no more than `live` pieces of memory made
/// since the last cut, once `bytes` have been saved. Between the layers of a net that is one.
class AutomaticCuts final : public TapePolicy {
 public:
  explicit AutomaticCuts(int64_t bytes, int live = 1) : bytes_(bytes), live_(live) {}
  bool cut_before_op(const Tape& tape, const OpTraits& /*op*/) override {
    return tape.segment_bytes() >= bytes_ && tape.live_in_segment(live_) <= live_;
  }

 private:
  int64_t bytes_;
  int live_;
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
