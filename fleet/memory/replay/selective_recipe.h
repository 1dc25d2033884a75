// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fleet/memory/replay/recompute_search.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/tape/kept_value.h"
#include "fleet/memory/tape/op_record.h"
#include "fleet/memory/tape/tape_policy.h"
#include "fleet/memory/tape/tape_values.h"

namespace fleet::memory {

/// Selective recomputation of one value: which ops are called, starting from what is kept and from
/// what the value's region recomputes. Only ops whose results the policy has recomputed
/// selectively, and views. Values that one op made share a region, so that it is called once.
class SelectiveRecipe {
 public:
  SelectiveRecipe(const TapeValues& values, TapePolicy& policy, const OpRecords& records,
                  const Region& region)
      : values_(values),
        policy_(policy),
        records_(records),
        region_(region),
        search_(Graph{*this}) {}
  SelectiveRecipe(const SelectiveRecipe&) = delete;
  SelectiveRecipe& operator=(const SelectiveRecipe&) = delete;

  /// Whether there is one for this value. The value must be evicted already, or it would be its own
  /// replay input.
  bool can_recompute(const KeptValue& kept);
  /// From now on `region` follows the recipe for it, too.
  void add_to(Region& region, const KeptValue& kept);

 private:
  struct Graph {
    const SelectiveRecipe& recipe;
    bool can_replay(int op) const;
    const std::vector<OpInput>& inputs(int op) const { return recipe.records_.find(op)->inputs; }
    bool is_available(const OpInput& input) const {
      return recipe.is_kept(input) || recipe.find_available(input);
    }
    Makers makers(const OpInput& input) const;
  };

  bool is_kept(const OpInput& input) const;
  /// A value that is resident, or that the region recomputes; null: none.
  std::shared_ptr<KeptValue> find_available(const OpInput& input) const;
  Makers makers_of(const KeptValue::Origin& origin) const;

  const TapeValues& values_;
  TapePolicy& policy_;
  const OpRecords& records_;
  const Region& region_;
  RecomputeSearch<Graph> search_;
};

}  // namespace fleet::memory
