// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/tape/retention.h"

#include <algorithm>
#include <utility>

#include "fleet/memory/offload/offload_scheduler.h"
#include "fleet/memory/plan/profile/profile_writer.h"
#include "fleet/memory/replay/selective_recipe.h"
#include "fleet/memory/tape/tensor_storage.h"
#include "fleet/memory/tape/unrecorded_scope.h"

namespace fleet::memory {

using Treatment = TapePolicy::Treatment;

Retention::Retention(TapePolicy& policy, TapeValues& values, TapeReport& report,
                     ProfileWriter* profile, const Offload* offload)
    : policy_(policy),
      values_(values),
      report_(report),
      profile_(profile),
      root_(std::make_shared<Region>(nullptr, values_.provenance(), 0)),
      search_(Graph{.records = records_, .provenance = *values_.provenance()}) {
  if (offload) offload_scheduler_ = std::make_unique<OffloadScheduler>(*offload, values_);
  regions_.push_back(root_);
  open_.push_back({.region = root_, .treatment = Treatment::kKeep});
  open(policy_.treatment(0));
}

Retention::~Retention() = default;

void Retention::end() {
  while (open_.size() > 1) {
    if (open_.back().treatment == Treatment::kDrop) open_.back().treatment = Treatment::kKeep;
    close();
  }
  if (std::exchange(has_ended_, true)) return;
  if (offload_scheduler_) offload_scheduler_->forward_ended();
  if (profile_) profile_->profiler()->forward_ended();
}

void Retention::abandon() {
  for (const auto& region : regions_) region->abandon();
}

// ---- segments and regions

void Retention::open(Treatment treatment) {
  regions_.push_back(std::make_shared<Region>(region(), values_.provenance(), next_op()));
  regions_.back()->set_open_records(&records_);
  if (treatment == Treatment::kEvictOnDemand) {
    regions_.back()->evict_on_demand();
    if (profile_) {
      regions_.back()->pool()->set_evicted(
          [profiler = profile_->profiler()](int64_t bytes, double seconds) {
            profiler->evicted(bytes, seconds);
          });
    }
  }
  open_.push_back({.region = regions_.back(), .treatment = treatment});
}

void Retention::close() {
  const UnrecordedScope unrecorded;
  const auto closing = open_.back();
  open_.pop_back();
  if (closing.treatment == Treatment::kKeep) {
    closing.region->hand_over(region() == root_ ? nullptr : region().get());
  } else {
    const auto first = closing.region->first_op() - records_.first_op;
    const std::vector records(records_.records.begin() + first, records_.records.end());
    const auto dropped = closing.treatment == Treatment::kEvictOnDemand
                             ? closing.region->keep_records(records)
                             : closing.region->drop(records);
    report_.evicted += dropped.values;
    report_.evicted_bytes += dropped.bytes;
    for (const auto& [op, bytes] : dropped.kept) {
      ++report_.not_recomputable;
      report_.not_recomputable_bytes += bytes;
      report_.kept_ops[op] += bytes;
    }
  }
  if (region() == root_) {
    records_ = {.first_op = next_op()};
    search_.clear();
    selective_.clear();
  }
}

void Retention::cut() {
  if (next_op() == open_.back().region->first_op()) {  // nothing in it
    if (const auto treatment = policy_.treatment(segment_); treatment != open_.back().treatment) {
      open_.pop_back();
      open(treatment);
    }
    return;
  }
  const auto closed = region();
  close();
  if (offload_scheduler_) {
    offload_scheduler_->segment_ended(closed, segment_first_value_, policy_.offloads(segment_));
  }
  ++segment_;
  ++report_.segments;
  segment_bytes_ = 0;
  segment_first_value_ = values_.size();
  open(policy_.treatment(segment_));
}

void Retention::open_region() { open(Treatment::kDrop); }

void Retention::close_region(Treatment treatment) {
  open_.back().treatment = treatment;
  close();
}

int Retention::live_in_segment(int limit) const {
  int live = 0;
  std::vector<int> counted;
  for (int value = segment_first_value_; value < values_.size(); ++value) {
    const int storage = values_.storage_id_of(value);
    if (storage < 0 || values_.storage(storage).defining_region != region().get()) continue;
    if (!values_[value].is_held()) continue;
    if (std::ranges::find(counted, storage) != counted.end()) continue;
    counted.push_back(storage);
    if (++live > limit) break;
  }
  return live;
}

// ---- ops

void Retention::offload_due() {
  if (offload_scheduler_ && offload_scheduler_->is_due()) offload_scheduler_->offload();
}

// In a segment that is kept, only for selective recomputation.
bool Retention::may_be_replayed(const OpRecord& record) const {
  if (!record.can_replay) return false;
  return open_.back().treatment != Treatment::kKeep || record.traits->is_view ||
         policy_.recomputes_results_of(record);
}

void Retention::add(std::shared_ptr<OpRecord> record, double seconds) {
  const int op = record->index;
  if (auto* const pool = this->pool()) pool->add_op(*record, values_, seconds);
  records_.records.push_back(std::move(record));
  ++report_.ops;
  search_.can_call(op);  // op by op, so that no later search goes deep
}

// ---- values

bool Retention::is_inside(int value) const {
  const auto* defining_region = values_.defining_region_of(value);
  return defining_region && region()->contains(defining_region);
}

std::shared_ptr<KeptValue> Retention::kept(int value, const torch::Tensor& tensor, int time,
                                           Use use) {
  const bool is_view = use == Use::kSaveOfView;
  auto& seen = values_[value];
  const auto version = values_.version_of(value);
  auto* const defining_region = values_.defining_region_of(value);
  auto* const owner =
      defining_region ? Region::common(defining_region, region().get()) : root_.get();
  std::erase_if(seen.kept, [](const auto& entry) { return entry.expired(); });
  for (const auto& entry : seen.kept) {
    auto known = entry.lock();
    if (!known || known->origin().version != version || !known->has_geometry_of(tensor)) continue;
    auto before = known->region();
    const bool was_selective = before && before->is_selective();
    if (was_selective) before = before->parent();
    if (before) {
      auto* const both = Region::common(before.get(), owner);
      // The region of a selective recomputation lives only as long as autograd holds its value.
      if (both != before.get() || (was_selective && use == Use::kReplayInput)) {
        if (both == root_.get()) {
          known->set_region(nullptr);
        } else {
          both->add(known);
        }
        if (!known->is_resident()) known->take_back(tensor);
      }
    }
    if (!is_view) known->is_no_view();
    return known;
  }
  KeptValue::Origin origin{.value = value, .version = version, .time = time, .is_view = is_view};
  if (is_view) origin.from_value = tensor.storage_offset() - seen.offset;
  auto fresh = std::make_shared<KeptValue>(tensor, origin);
  if (owner != root_.get()) owner->add(fresh);
  seen.kept.push_back(fresh);
  return fresh;
}

// The user's tensor that was saved, or one that shares its storage; -1: none.
int Retention::value_saved(const SavedSlot& slot, int storage, const OpRecord* record) const {
  const auto fits = [&](int value) {
    return value >= 0 && values_.storage_id_of(value) == storage &&
           values_[value].dtype == slot.tensor.scalar_type();
  };
  if (const int itself = values_.find(slot.address); fits(itself)) return itself;
  if (!record) return -1;
  for (const auto& input : record->inputs) {
    if (fits(input.value)) return input.value;
  }
  for (const auto& output : record->outputs) {
    if (fits(output.value)) return output.value;
  }
  return -1;
}

// Autograd often saves a view of what the user passed (a linear flattens its input): the user's own
// tensor is kept then, since replays can start from it.
std::shared_ptr<KeptValue> Retention::kept_for(SavedSlot& slot, int value) {
  const auto& seen = values_[value];
  if (seen.tensor._unsafe_get_target() == slot.address) {
    return kept(value, slot.tensor, next_op(), Use::kSave);
  }
  const torch::Tensor itself(seen.tensor.lock());
  // One that shares its storage may cover less of it: queries and keys in the result of one layer.
  if (!itself.defined() || !range_of(itself).contains(range_of(slot.tensor))) {
    return kept(value, slot.tensor, next_op(), Use::kSaveOfView);
  }
  slot.view = std::make_unique<SavedSlot::View>(
      SavedSlot::View{.sizes = slot.tensor.sizes().vec(),
                      .strides = slot.tensor.strides().vec(),
                      .offset = slot.tensor.storage_offset() - itself.storage_offset(),
                      .is_conj = slot.tensor.is_conj(),
                      .is_neg = slot.tensor.is_neg()});
  return kept(value, itself, next_op(), Use::kSave);
}

void Retention::resolve(SavedSlot& slot, OpRecord* record) {
  slot.region = region();
  // Written to inside the op that saved it: backward will throw, as with plain autograd.
  if (!is_strided(slot.tensor) || slot.is_stale()) return;
  if (const int storage = values_.find_storage(storage_of(slot.tensor)); storage >= 0) {
    const int value = value_saved(slot, storage, record);
    if (value < 0 || !values_.defining_region_of(value)) return;  // from outside: as autograd would
    slot.kept = kept_for(slot, value);
  } else if (record && record->can_replay) {
    slot.kept = std::make_shared<KeptValue>(
        slot.tensor, KeptValue::Origin{.op = record->index, .save = slot.save});
    region()->add(slot.kept);
  } else {
    return;
  }
  if (profile_ && slot.op_index >= 0) profile_->saved(record, slot.kept, slot.tensor);
  slot.kept->add_reader();
  report_.saved_bytes += slot.kept->bytes();
  if (slot.kept->region()) segment_bytes_ += slot.kept->bytes();
  slot.tensor.reset();
  apply_policy(slot, record);
}

// ---- decisions

void Retention::apply_policy(SavedSlot& slot, OpRecord* record) {
  auto& kept = *slot.kept;
  const auto owner = kept.region();
  if (!owner || !kept.is_resident()) {
    if (owner && region()->contains(owner.get())) slot.region = owner;
    return;
  }
  if (owner != region() || kept.is_replay_input()) return;
  const auto& origin = kept.origin();
  const auto makers = origin.op >= 0 ? Makers{.producer = origin.op}
                                     : values_.provenance()->makers_of(origin.value);
  if (!records_.find(makers.producer)) return;
  if (const auto maker = kept.readers() == 1 ? maker_behind_views(kept) : nullptr;
      maker && policy_.recomputes_results_of(*maker) && recompute_selectively(slot, *maker)) {
    return;
  }
  const auto treatment = open_.back().treatment;
  if (treatment != Treatment::kEvictEagerly && treatment != Treatment::kEvictOnDemand) return;
  if (!search_.can_recompute(makers, next_op())) return;
  if (treatment == Treatment::kEvictOnDemand) {
    const int storage = origin.op >= 0 ? -1 : values_.storage_id_of(origin.value);
    return pool()->add(slot.kept, storage, record ? record->index : next_op() - 1);
  }
  if (record) {
    const UnrecordedScope unrecorded;
    Region::keep_mask_bits(*record, origin.save, kept.tensor());
  }
  kept.evict();
}

// The op that made the storage of a value: a view of it is recomputed with it, so that the policy
// is asked about that op. Null: it is not part of the open segment.
std::shared_ptr<OpRecord> Retention::maker_behind_views(const KeptValue& kept) const {
  if (kept.origin().op >= 0) return records_.find(kept.origin().op);
  int value = kept.origin().value;
  const int storage = values_.storage_id_of(value);
  for (;;) {
    const int producer = values_.producer_of(value);
    const auto record = producer < 0 ? nullptr : records_.find(producer);
    if (!record || !record->traits->is_view) return record;
    const auto base = std::ranges::find_if(record->inputs, [&](const OpInput& input) {
      return values_.storage_id_of(input.value) == storage;
    });
    if (base == record->inputs.end()) return record;  // contiguous() of what was not
    value = base->value;
  }
}

bool Retention::recompute_selectively(SavedSlot& slot, OpRecord& maker) {
  auto& kept = *slot.kept;
  if (kept.origin().op >= 0 && recompute_from_bits(slot, maker)) return true;
  const auto tensor = kept.tensor();
  kept.evict();
  SelectiveRecipe recipe(values_, policy_, records_, *region());
  if (!recipe.can_recompute(kept)) {
    kept.take_back(tensor);
    return false;
  }
  const auto selective = selective_region(kept, maker.index);
  recipe.add_to(*selective, kept);
  assign_to(selective, slot);
  return true;
}

// Queries, keys and values in the result of one layer, or what a norm saves and what it returns:
// one replay recomputes them all.
std::shared_ptr<Region> Retention::selective_region(const KeptValue& kept, int maker) {
  auto& shared = selective_[maker];
  const auto& origin = kept.origin();
  const int storage = origin.op >= 0 ? -1 : values_.storage_id_of(origin.value);
  const bool is_other_version = std::ranges::any_of(shared.storages, [&](const auto& known) {
    return storage >= 0 && known.first == storage && known.second != origin.version;
  });
  auto region = is_other_version ? nullptr : shared.region.lock();
  if (!region) {
    region = std::make_shared<Region>(this->region(), values_.provenance(), maker);
    shared = {.region = region, .storages = {}};
  }
  shared.storages.emplace_back(storage, origin.version);
  return region;
}

// The mask of a dropout needs no inputs.
bool Retention::recompute_from_bits(SavedSlot& slot, OpRecord& maker) {
  auto& kept = *slot.kept;
  {
    const UnrecordedScope unrecorded;
    Region::keep_mask_bits(maker, kept.origin().save, kept.tensor());
  }
  if (!maker.mask) return false;
  kept.evict();
  const auto selective = std::make_shared<Region>(region(), values_.provenance(), maker.index);
  selective->add_records({maker.mask_only()});
  assign_to(selective, slot);
  return true;
}

void Retention::assign_to(const std::shared_ptr<Region>& selective, SavedSlot& slot) {
  selective->add(slot.kept);
  slot.region = selective;
  ++report_.evicted;
  report_.evicted_bytes += slot.kept->bytes();
}

}  // namespace fleet::memory
