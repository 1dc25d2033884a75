#pragma once

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "fleet/memory/kept_value.h"
#include "fleet/memory/ledger.h"
#include "fleet/memory/op_record.h"

namespace fleet::memory {

class Region;

/// Which ops of a region must be called again to make some of its values, and whether they can be.
class ReplayNeed {
 public:
  using Records = std::vector<std::shared_ptr<OpRecord>>;

  /// `records` in the order of their calls; all of these must outlive it.
  ReplayNeed(const Region& region, const Ledger& ledger, const Records& records)
      : region_(region), ledger_(ledger), records_(records), state_(records.size()) {}

  /// A value that is at hand, so that nothing has to be called for it.
  void at_hand(const KeptValue& kept);
  bool possible(const KeptValue& kept);
  /// Its makers are needed.
  void mark(const KeptValue& kept);

  bool is_needed(size_t position) const { return state_[position] == State::kNeeded; }
  /// Where an input comes from: kept somewhere, or made by the replay itself.
  bool is_kept(const OpInput& input) const;
  bool is_kept_elsewhere(const OpInput& input) const;

 private:
  enum class State : char { kUnknown, kPossible, kImpossible, kNeeded };

  bool is_at_hand(int value, uint32_t version) const;
  int position(int op) const;
  bool possible_value(int value, uint32_t version, int time);
  bool possible_op(int op);
  void mark_makers(int value, int time);
  void mark_op(int op);

  const Region& region_;
  const Ledger& ledger_;
  const Records& records_;
  std::vector<State> state_;  // by record
  std::unordered_set<uint64_t> at_hand_;
};

}  // namespace fleet::memory
