// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/replay/replay_need.h"

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/memory/replay/region.h"

namespace fleet::memory {
namespace {

uint64_t key(int value, uint32_t version) {
  return (static_cast<uint64_t>(value) << 32U) | version;
}

}  // namespace

bool ReplayNeed::Graph::can_replay(int op) const {
  const auto* const record = need.find(op);
  return record && record->can_replay;
}

const std::vector<OpInput>& ReplayNeed::Graph::inputs(int op) const {
  const auto* const record = need.find(op);
  FLEET_ASSERT(record, "an op that a replay needs was not kept");
  return record->inputs;
}

void ReplayNeed::set_available(const KeptValue& kept) {
  const auto& origin = kept.origin();
  if (origin.value >= 0 && !origin.is_view) available_.emplace(key(origin.value, origin.version));
}

bool ReplayNeed::possible(const KeptValue& kept) {
  const auto& origin = kept.origin();
  if (origin.value < 0) return search_.can_call(origin.op);
  return is_available(origin.value, origin.version) ||
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

bool ReplayNeed::is_kept(const OpInput& input) const {
  return is_kept_elsewhere(input) || is_available(input.value, input.version);
}

bool ReplayNeed::is_kept_elsewhere(const OpInput& input) const {
  if (!input.kept) return false;
  const auto owner = input.kept->region();
  // An inner region evicted it and is gone: this region recomputes it.
  if (!owner) return input.kept->is_resident() || input.kept->is_offloaded();
  return !region_.contains(owner.get());
}

bool ReplayNeed::is_available(int value, uint32_t version) const {
  return available_.contains(key(value, version));
}

const OpRecord* ReplayNeed::find(int op) const {
  const auto place =
      std::ranges::lower_bound(records_, op, {}, [](const auto& record) { return record->index; });
  return place == records_.end() || (*place)->index != op ? nullptr : place->get();
}

}  // namespace fleet::memory
