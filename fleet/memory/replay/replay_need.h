// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

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
  using Records = std::vector<std::shared_ptr<OpRecord>>;

  /// `records` in the order of their calls; all of these must outlive it.
  ReplayNeed(const Region& region, const ProvenanceTable& provenance, const Records& records)
      : region_(region), provenance_(provenance), records_(records), search_(Graph{*this}) {}
  ReplayNeed(const ReplayNeed&) = delete;
  ReplayNeed& operator=(const ReplayNeed&) = delete;

  /// A value that is resident, so that nothing has to be called for it. Before the first question.
  void set_available(const KeptValue& kept);
  bool possible(const KeptValue& kept);
  /// Its makers are needed.
  void mark(const KeptValue& kept);

  bool is_needed(size_t position) const { return search_.is_needed(records_[position]->index); }
  /// Where an input comes from: kept somewhere, or recomputed by the replay itself.
  bool is_kept(const OpInput& input) const;
  bool is_kept_elsewhere(const OpInput& input) const;

 private:
  struct Graph {
    const ReplayNeed& need;
    bool can_replay(int op) const;
    const std::vector<OpInput>& inputs(int op) const;
    bool is_available(const OpInput& input) const { return need.is_kept(input); }
    Makers makers(const OpInput& input) const { return need.provenance_.makers_of(input.value); }
  };

  bool is_available(int value, uint32_t version) const;
  const OpRecord* find(int op) const;

  const Region& region_;
  const ProvenanceTable& provenance_;
  const Records& records_;
  RecomputeSearch<Graph> search_;
  std::unordered_set<uint64_t> available_;
};

}  // namespace fleet::memory
