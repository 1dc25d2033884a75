// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/replay/region.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "fleet/core/error.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/replay/replay.h"
#include "fleet/memory/replay/replay_need.h"

namespace fleet::memory {
namespace {

std::atomic<int64_t> g_alive{0};

// Recomputed values are evicted at the end of a backward at the latest: with retain_graph nothing
// else would free them. By backward, since other threads may be in the middle of theirs.
class RecomputedValues {
 public:
  using Values = std::vector<std::shared_ptr<KeptValue>>;

  static void add(const Values& values) {
    auto& all = instance();
    const int backward = compat::current_backward();
    bool is_new = false;
    {
      const std::scoped_lock lock(all.mutex_);
      auto& list = all.by_backward_[backward];
      is_new = list.empty();
      list.insert(list.end(), values.begin(), values.end());
    }
    // Somebody looks at a graph. The next replay outside of a backward evicts what this one made.
    if (backward == kNone && !is_new) return evict(kNone, values);
    if (backward != kNone && is_new) {
      compat::on_backward_end([backward](bool) { evict(backward, {}); });
    }
  }

 private:
  static constexpr int kNone = -1;

  static RecomputedValues& instance() {
    static auto* const one = new RecomputedValues();  // backwards may end after main
    return *one;
  }

  static void evict(int backward, const Values& but) {
    auto& all = instance();
    std::vector<std::weak_ptr<KeptValue>> list;
    {
      const std::scoped_lock lock(all.mutex_);
      auto place = all.by_backward_.extract(backward);
      if (place) list = std::move(place.mapped());
      if (!but.empty()) all.by_backward_[backward].assign(but.begin(), but.end());
    }
    for (const auto& entry : list) {
      const auto kept = entry.lock();
      if (kept && std::ranges::find(but, kept) == but.end()) kept->evict_recomputed();
    }
  }

  std::mutex mutex_;
  std::unordered_map<int, std::vector<std::weak_ptr<KeptValue>>> by_backward_;
};

}  // namespace

Region::Region(std::shared_ptr<Region> parent, std::shared_ptr<const ProvenanceTable> provenance,
               int first_op)
    : parent_(std::move(parent)),
      provenance_(std::move(provenance)),
      first_op_(first_op),
      depth_(parent_ ? parent_->depth_ + 1 : 0) {
  ++g_alive;
}

Region::~Region() { --g_alive; }

int64_t Region::alive() { return g_alive; }

bool Region::contains(const Region* other) const {
  while (other && other->depth_ > depth_) other = other->parent_.get();
  return other == this;
}

Region* Region::common(Region* a, Region* b) {
  while (a != b) {
    auto*& deeper = a->depth_ >= b->depth_ ? a : b;
    deeper = deeper->parent_.get();
  }
  return a;
}

void Region::add(const std::shared_ptr<KeptValue>& kept) {
  kept->set_region(shared_from_this());
  members_.push_back(kept);
  if (pool_ && kept->origin().value >= 0) by_value_[kept->origin().value].push_back(kept);
}

std::vector<std::shared_ptr<KeptValue>> Region::members() {
  std::vector<std::shared_ptr<KeptValue>> living;
  for (const auto& entry : members_) {
    auto kept = entry.lock();
    // It may have moved to an outer region since.
    if (kept && kept->region().get() == this) living.push_back(std::move(kept));
  }
  return living;
}

void Region::keep_replay_input(std::shared_ptr<KeptValue> kept) {
  if (std::ranges::find(replay_inputs_, kept) == replay_inputs_.end()) {
    replay_inputs_.push_back(std::move(kept));
  }
}

void Region::add_records(const std::vector<std::shared_ptr<OpRecord>>& records) {
  const std::scoped_lock lock(mutex_);
  is_selective_ = true;
  for (const auto& record : records) {
    const auto place = std::ranges::lower_bound(records_, record->index, {},
                                                [](const auto& known) { return known->index; });
    if (place == records_.end() || *place != record) records_.insert(place, record);
  }
}

void Region::set_open_records(const OpRecords* records) {
  const std::scoped_lock lock(mutex_);
  open_records_ = records;
}

void Region::abandon() {
  const std::scoped_lock lock(mutex_);
  open_records_ = nullptr;
  is_abandoned_ = true;
}

Region::Dropped Region::keep_needed(const std::vector<std::shared_ptr<OpRecord>>& records,
                                    std::vector<std::shared_ptr<KeptValue>>& needing) {
  Dropped result;
  AvailableValues nothing;
  ReplayNeed need(*this, *provenance_, records, nothing);
  const auto record_of = [&](int op) {
    return std::ranges::lower_bound(records, op, {}, [](const auto& r) { return r->index; })->get();
  };
  for (auto& kept : members()) {
    const auto& origin = kept->origin();
    if (!need.possible(*kept)) {
      FLEET_ASSERT(kept->is_resident(), "a value was evicted that cannot be recomputed");
      kept->set_region(nullptr);
      const int op = origin.op >= 0 ? origin.op : provenance_->value(origin.value).producer;
      result.kept.emplace_back(record_of(op)->traits->name, kept->bytes());
      continue;
    }
    need.mark(*kept);
    needing.push_back(std::move(kept));
  }
  for (const auto& record : records) {
    if (need.is_needed(record->index)) records_.push_back(record);
  }
  return result;
}

Region::Dropped Region::drop(const std::vector<std::shared_ptr<OpRecord>>& records) {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<KeptValue>> dropped;
  auto result = keep_needed(records, dropped);
  for (const auto& kept : dropped) {
    const auto& origin = kept->origin();
    if (origin.op >= 0 && kept->is_resident()) {
      keep_mask_bits(*records[static_cast<size_t>(origin.op - records.front()->index)], origin.save,
                     kept->tensor());
    }
    result.bytes += kept->bytes();
  }
  // Last, so that an error before it changes nothing.
  open_records_ = nullptr;
  for (const auto& kept : dropped) kept->evict();
  result.values = std::ssize(dropped);
  return result;
}

void Region::evict_on_demand() {
  pool_ = std::make_unique<EvictionPool>(first_op_);
  pool_->set_before_evict([this](const KeptValue& kept) {
    const auto& origin = kept.origin();
    if (origin.op >= 0) keep_mask_bits(*find_record(origin.op), origin.save, kept.tensor());
  });
}

Region::Dropped Region::keep_records(const std::vector<std::shared_ptr<OpRecord>>& records) {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<KeptValue>> needing;
  auto result = keep_needed(records, needing);
  open_records_ = nullptr;
  pool_->forward_ended();
  return result;
}

void Region::hand_over(Region* outer) {
  const std::scoped_lock lock(mutex_);
  for (const auto& kept : members()) {
    if (outer) {
      outer->add(kept);
    } else {
      kept->set_region(nullptr);
    }
  }
  members_.clear();
  open_records_ = nullptr;
}

void Region::keep_mask_bits(OpRecord& record, int save, const torch::Tensor& mask) {
  if (save < 0 || record.traits->mask_save != save || record.saves != 1) return;
  if (record.mask) return;
  // The rng state stays: a mask may be evicted while its op is replayed.
  try {
    record.mask = MaskBits::of(mask);
  } catch (const c10::OutOfMemoryError&) {
    return;  // then it is recomputed from the rng state
  }
}

// For a gradient that is taken inside the forward: all records so far.
std::span<const std::shared_ptr<OpRecord>> Region::records_now() const {
  if (!open_records_) return records_;
  const std::span all(open_records_->records);
  return all.subspan(static_cast<size_t>(first_op_ - open_records_->first_op));
}

OpRecord* Region::find_record(int op) const {
  const auto records = records_now();
  return std::ranges::lower_bound(records, op, {}, [](const auto& r) { return r->index; })->get();
}

std::shared_ptr<KeptValue> Region::find_resident(int value, uint32_t version) const {
  const auto place = by_value_.find(value);
  if (place == by_value_.end()) return nullptr;
  for (const auto& entry : place->second) {
    auto kept = entry.lock();
    if (kept && kept->region().get() == this && kept->origin().version == version &&
        !kept->origin().is_view && kept->is_intact()) {
      return kept;
    }
  }
  return nullptr;
}

void Region::recompute(const std::shared_ptr<KeptValue>& asked) {
  const auto began = std::chrono::steady_clock::now();
  const std::scoped_lock lock(mutex_);
  if (is_abandoned_) {
    throw Error(
        "recompute",
        "the forward ended with an error before its segment did, so what was evicted cannot "
        "be recomputed",
        "call the forward again before backward");
  }
  std::vector<std::shared_ptr<KeptValue>> wanted;
  AvailableValues available;
  if (pool_) {
    available = AvailableValues([this](int v, uint32_t n) { return find_resident(v, n); });
    wanted.push_back(asked);
  } else {
    for (const auto& kept : replay_inputs_) available.add(kept);
    for (auto& kept : members()) {
      if (kept->is_intact()) {
        available.add(kept);
      } else if (!kept->is_resident()) {
        wanted.push_back(std::move(kept));
      }
    }
    if (wanted.empty()) return;
  }
  ReplayNeed need(*this, *provenance_, records_now(), available);
  for (const auto& kept : wanted) need.mark(*kept);
  if (pool_) {
    available.freeze();
    for (const auto* record : need.needed()) {
      pool_->for_each_evicted_of(record->index, [&](const std::shared_ptr<KeptValue>& kept) {
        if (kept != asked && kept->region().get() == this && need.is_computed(*kept)) {
          wanted.push_back(kept);
        }
      });
    }
  }
  std::optional<EvictionPool::Pin> pin;
  if (pool_) pin.emplace(*pool_, *asked);
  RecomputedValues::add(wanted);
  replay(need, wanted, began);
}

}  // namespace fleet::memory
