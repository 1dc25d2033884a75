// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/replay/replay_need.h"

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/memory/replay/region.h"

namespace fleet::memory {

bool ReplayNeed::Graph::can_replay(int op) const {
  const auto* const record = need.find(op);
  return record && record->can_replay;
}

const std::vector<OpInput>& ReplayNeed::Graph::inputs(int op) const {
  const auto* const record = need.find(op);
  FLEET_ASSERT(record, "an op that a replay needs was not kept");
  return record->inputs;
}

bool ReplayNeed::possible(const KeptValue& kept) {
  const auto& origin = kept.origin();
  if (origin.value < 0) return search_.can_call(origin.op);
  return available_.find(origin.value, origin.version) ||
         search_.can_recompute(provenance_.makers_of(origin.value), origin.time);
}

void ReplayNeed::mark(const KeptValue& kept) {
  const auto& origin = kept.origin();
  if (origin.value >= 0) {
    search_.need(provenance_.makers_of(origin.value), origin.time);
  } else {
    search_.need(origin.op);
  }
}

bool ReplayNeed::is_computed(const KeptValue& kept) const {
  const auto& origin = kept.origin();
  if (origin.value < 0) return is_needed(origin.op);
  const auto makers = provenance_.makers_of(origin.value);
  return is_needed(makers.producer) &&
         (!makers.writers || std::ranges::all_of(*makers.writers, [&](int writer) {
           return writer >= origin.time || is_needed(writer);
         }));
}

std::vector<const OpRecord*> ReplayNeed::needed() const {
  auto ops = search_.needed();
  std::ranges::sort(ops);
  std::vector<const OpRecord*> records;
  records.reserve(ops.size());
  for (const int op : ops) records.push_back(find(op));
  return records;
}

bool ReplayNeed::is_kept(const OpInput& input) const {
  return is_kept_elsewhere(input) || find_available(input);
}

bool ReplayNeed::is_kept_elsewhere(const OpInput& input) const {
  if (input.constant) return true;
  if (!input.kept) return false;
  const auto owner = input.kept->region();
  // An inner region evicted it and is gone: this region recomputes it.
  if (!owner) return input.kept->is_resident() || input.kept->is_offloaded();
  return !region_.contains(owner.get());
}

const OpRecord* ReplayNeed::find(int op) const {
  const auto place =
      std::ranges::lower_bound(records_, op, {}, [](const auto& record) { return record->index; });
  return place == records_.end() || (*place)->index != op ? nullptr : place->get();
}

}  // namespace fleet::memory
