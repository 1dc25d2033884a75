// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fleet/memory/replay/available_values.h"
#include "fleet/memory/replay/recompute_search.h"
#include "fleet/memory/tape/kept_value.h"
#include "fleet/memory/tape/op_record.h"
#include "fleet/memory/tape/provenance_table.h"

namespace fleet::memory {

class Region;

/// Which ops of a region must be called again to recompute some of its values, and whether they can
/// be.
class ReplayNeed {
 public:
  using Records = std::span<const std::shared_ptr<OpRecord>>;

  /// `records` in the order of their calls. For what is `available` nothing has to be called. All
  /// of these must outlive it.
  ReplayNeed(const Region& region, const ProvenanceTable& provenance, Records records,
             AvailableValues& available)
      : region_(region),
        provenance_(provenance),
        records_(records),
        search_(Graph{*this}),
        available_(available) {}
  ReplayNeed(const ReplayNeed&) = delete;
  ReplayNeed& operator=(const ReplayNeed&) = delete;

  bool possible(const KeptValue& kept);
  /// Its makers are needed.
  void mark(const KeptValue& kept);

  bool is_needed(int op) const { return search_.is_needed(op); }
  /// Whether the ops that are needed so far compute it.
  bool is_computed(const KeptValue& kept) const;
  /// In the order of their calls.
  std::vector<const OpRecord*> needed() const;
  /// Where an input comes from: kept somewhere, or recomputed by the replay itself.
  bool is_kept(const OpInput& input) const;
  bool is_kept_elsewhere(const OpInput& input) const;
  /// Null for none. An op that writes in place never starts from one that others read too.
  KeptValue* find_available(const OpInput& input) const {
    if (input.written && available_.are_shared()) return nullptr;
    return available_.find(input.value, input.version);
  }

 private:
  struct Graph {
    const ReplayNeed& need;
    bool can_replay(int op) const;
    const std::vector<OpInput>& inputs(int op) const;
    bool is_available(const OpInput& input) const { return need.is_kept(input); }
    Makers makers(const OpInput& input) const { return need.provenance_.makers_of(input.value); }
  };

  const OpRecord* find(int op) const;

  const Region& region_;
  const ProvenanceTable& provenance_;
  Records records_;
  RecomputeSearch<Graph> search_;
  AvailableValues& available_;
};

}  // namespace fleet::memory
