#pragma once

#include <map>
#include <memory>
#include <vector>

#include "fleet/memory/kept_value.h"
#include "fleet/memory/op_record.h"
#include "fleet/memory/region.h"
#include "fleet/memory/tape_policy.h"
#include "fleet/memory/tape_values.h"

namespace fleet::memory {

/// How a value is made again by itself, from what is kept and what its region rebuilds: which ops
/// are called. Looked for among those whose results the policy has rebuilt one by one, and views.
class RebuildRecipe {
 public:
  RebuildRecipe(const TapeValues& values, TapePolicy& policy, const OpRecords& records,
                const Region& region)
      : values_(values), policy_(policy), records_(records), region_(region) {}

  /// An op, and whatever makes its inputs. False: that cannot be called again.
  bool add_op(int op);
  /// Ops that wrote to a memory before op `time`.
  bool add_writers(int memory, int time);

  /// A region that follows it.
  std::shared_ptr<Region> region_in(const std::shared_ptr<Region>& parent, int first_op);

 private:
  bool add_value(int value, uint32_t version, int time);

  const TapeValues& values_;
  TapePolicy& policy_;
  const OpRecords& records_;
  const Region& region_;
  std::map<int, std::shared_ptr<OpRecord>> ops_;
  std::vector<std::shared_ptr<KeptValue>> sources_;  // beside what the ops keep
};

}  // namespace fleet::memory
