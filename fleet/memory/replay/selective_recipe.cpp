// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/replay/selective_recipe.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace fleet::memory {

bool SelectiveRecipe::Graph::can_replay(int op) const {
  const auto record = recipe.records_.find(op);
  return record && record->can_replay &&
         (record->traits->is_view || recipe.policy_.recomputes_results_of(*record));
}

Makers SelectiveRecipe::Graph::makers(const OpInput& input) const {
  const auto* const defining_region = recipe.values_.defining_region_of(input.value);
  if (!defining_region || !recipe.region_.contains(defining_region)) return {};
  return recipe.values_.provenance()->makers_of(input.value);
}

bool SelectiveRecipe::is_kept(const OpInput& input) const {
  if (input.constant) return true;
  if (!input.kept) return false;
  const auto owner = input.kept->region();
  return !owner || owner->contains(&region_);
}

std::shared_ptr<KeptValue> SelectiveRecipe::find_available(const OpInput& input) const {
  for (const auto& entry : values_[input.value].kept) {
    auto known = entry.lock();
    if (!known || known->origin().version != input.version || known->origin().is_view) continue;
    const bool is_recomputed = !known->is_resident() && known->region().get() == &region_;
    if (known->is_intact() || is_recomputed) return known;
  }
  return nullptr;
}

Makers SelectiveRecipe::makers_of(const KeptValue::Origin& origin) const {
  return origin.op >= 0 ? Makers{.producer = origin.op}
                        : values_.provenance()->makers_of(origin.value);
}

bool SelectiveRecipe::can_recompute(const KeptValue& kept) {
  return search_.can_recompute(makers_of(kept.origin()), kept.origin().time);
}

void SelectiveRecipe::add_to(Region& region, const KeptValue& kept) {
  search_.need(makers_of(kept.origin()), kept.origin().time);
  auto ops = search_.needed();
  std::ranges::sort(ops);
  std::vector<std::shared_ptr<OpRecord>> records;
  for (const int op : ops) {
    records.push_back(records_.find(op));
    for (const auto& input : records.back()->inputs) {
      if (is_kept(input)) continue;
      auto available = find_available(input);
      if (!available) continue;
      available->become_replay_input();
      region.keep_replay_input(std::move(available));
    }
  }
  region.add_records(records);
}

}  // namespace fleet::memory
