#include "fleet/memory/rebuild_recipe.h"

#include <algorithm>

namespace fleet::memory {

bool RebuildRecipe::add_op(int op) {
  if (ops_.contains(op)) return true;
  const auto record = records_.find(op);
  if (!record || !record->can_replay) return false;
  if (!record->traits->is_view && !policy_.rebuilds_results_of(*record)) return false;
  ops_.emplace(op, record);
  return std::ranges::all_of(record->inputs, [&](const OpInput& input) {
    const auto owner = input.kept ? input.kept->region() : nullptr;
    const bool is_kept = input.kept && (!owner || owner->contains(&region_));
    return is_kept || add_value(input.value, input.version, op);
  });
}

bool RebuildRecipe::add_writers(int memory, int time) {
  return std::ranges::all_of(values_.ledger()->writers_of(memory),
                             [&](int writer) { return writer >= time || add_op(writer); });
}

bool RebuildRecipe::add_value(int value, uint32_t version, int time) {
  for (const auto& entry : values_[value].kept) {
    const auto known = entry.lock();
    if (!known || known->origin().version != version || known->origin().is_view) continue;
    const bool comes_back = !known->is_here() && known->region().get() == &region_;
    if (known->is_intact() || comes_back) {
      sources_.push_back(known);
      return true;
    }
  }
  const auto* home = values_.home_of(value);
  if (!home || !region_.contains(home) || !add_op(values_.producer_of(value))) return false;
  return add_writers(values_.memory_of(value), time);
}

std::shared_ptr<Region> RebuildRecipe::region_in(const std::shared_ptr<Region>& parent,
                                                 int first_op) {
  auto alone = std::make_shared<Region>(parent, values_.ledger(), first_op);
  std::vector<std::shared_ptr<OpRecord>> records;
  records.reserve(ops_.size());
  for (const auto& [index, record] : ops_) records.push_back(record);
  alone->set_records(std::move(records));
  for (const auto& source : sources_) {
    source->become_source();
    alone->own_source(source);
  }
  return alone;
}

}  // namespace fleet::memory
