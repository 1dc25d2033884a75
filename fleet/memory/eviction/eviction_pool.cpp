// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/eviction/eviction_pool.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <ranges>
#include <utility>

#include "fleet/core/seconds_since.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/replay/region.h"
#include "fleet/memory/replay/replay.h"
#include "fleet/memory/tape/tensor_storage.h"
#include "fleet/memory/tape/unrecorded_scope.h"

namespace fleet::memory {
namespace {

constexpr size_t kLongestWalk = 64;  // ops
constexpr int64_t kAtOnce = 256;     // a fraction of what is live is freed at least

struct Registry {
  std::mutex mutex;
  std::vector<EvictionPool*> pools;

  static Registry& get() {
    static auto* const registry = new Registry();
    return *registry;
  }
};

thread_local bool t_evicting = false;

}  // namespace

// A walk stops at ops whose results are resident. Ops that were never evicted, since no backward
// needs their results, are walked through.
struct EvictionPool::Neighbourhood {
  double seconds = 0;
  c10::SmallVector<int, 8> components, ops;
};

struct EvictionPool::Group {
  EvictionPool* pool = nullptr;
  const c10::StorageImpl* storage = nullptr;
  int64_t bytes = 0;
  bool is_pinned = false;
  c10::SmallVector<size_t, 2> candidates;
  double score = 0;
};

EvictionPool::EvictionPool(int first_op)
    : first_op_(first_op), position_(first_op), thread_(std::this_thread::get_id()) {
  BudgetAllocator::cpu().counter().set_evictor(&EvictionPool::evict);
  auto& registry = Registry::get();
  const std::scoped_lock lock(registry.mutex);
  registry.pools.push_back(this);
}

EvictionPool::~EvictionPool() {
  auto& registry = Registry::get();
  const std::scoped_lock lock(registry.mutex);
  std::erase(registry.pools, this);
}

// ---- forward

void EvictionPool::add_op(const OpRecord& record, const TapeValues& values, double seconds) {
  const double before = ops_.empty() ? 0 : ops_.back().clock;
  auto& op = ops_.emplace_back();
  op.seconds = seconds;
  op.clock = before + seconds;
  position_ = record.index;
  thread_ = std::this_thread::get_id();
  for (const auto& input : record.inputs) {
    const auto maker = maker_.find(values.storage_id_of(input.value));
    if (maker == maker_.end() || std::ranges::find(op.parents, maker->second) != op.parents.end()) {
      continue;
    }
    op.parents.push_back(maker->second);
    at(maker->second).children.push_back(record.index);
  }
  for (const auto& input : record.inputs) {
    if (const int id = values.storage_id_of(input.value); input.written && id >= 0) {
      maker_[id] = record.index;
    }
  }
  for (const auto& output : record.outputs) {
    if (output.value < 0) continue;
    const int id = values.storage_id_of(output.value);
    if (id >= 0) maker_.try_emplace(id, record.index);
  }
}

void EvictionPool::add(const std::shared_ptr<KeptValue>& kept, int storage, int reader) {
  const auto [place, is_new] = index_.try_emplace(kept.get(), candidates_.size());
  if (!is_new) {
    auto& known = candidates_[place->second];
    if (known.kept.lock() == kept) {
      if (known.uses.back() != reader) known.uses.push_back(reader);
      return;
    }
    place->second = candidates_.size();  // another one at the same address
  }
  const auto& origin = kept->origin();
  const auto maker = maker_.find(storage);
  const int op = origin.op >= 0 ? origin.op : maker == maker_.end() ? -1 : maker->second;
  if (!contains(op)) return;
  candidates_.push_back({.kept = kept, .op = op, .uses = {reader}, .is_result = origin.op < 0});
  at(op).values.push_back(kept);
}

void EvictionPool::reached(int op) {
  if (!contains(op)) return;
  position_ = op;
  thread_ = std::this_thread::get_id();
}

// ---- costs

bool EvictionPool::is_resident(const Op& op) {
  return std::ranges::any_of(op.values, [](const auto& entry) {
    const auto kept = entry.lock();
    return kept && kept->origin().op < 0 && kept->is_resident();
  });
}

int EvictionPool::root_of(int component) {
  while (components_[static_cast<size_t>(component)].parent >= 0) {
    auto& parent = components_[static_cast<size_t>(component)].parent;
    const int above = components_[static_cast<size_t>(parent)].parent;
    if (above >= 0) parent = above;  // halves the path
    component = parent;
  }
  return component;
}

EvictionPool::Neighbourhood EvictionPool::neighbourhood_of(const Candidate& candidate) {
  Neighbourhood result;
  result.seconds = at(candidate.op).seconds;
  result.ops.push_back(candidate.op);
  const int walk = ++walks_;
  at(candidate.op).seen = walk;
  const auto visit = [&](int number) {
    auto& op = at(number);
    if (op.seen == walk) return;
    op.seen = walk;
    if (is_resident(op)) {
      if (op.component >= 0) {  // it was recomputed since
        components_[static_cast<size_t>(root_of(op.component))].seconds -= op.seconds;
        op.component = -1;
      }
      return;
    }
    if (op.component < 0) {
      result.seconds += op.seconds;
      result.ops.push_back(number);
      return;
    }
    const int root = root_of(op.component);
    if (std::ranges::find(result.components, root) != result.components.end()) return;
    result.seconds += components_[static_cast<size_t>(root)].seconds;
    result.components.push_back(root);
  };
  for (size_t i = 0; i < result.ops.size() && result.ops.size() < kLongestWalk; ++i) {
    const auto& op = at(result.ops[i]);
    for (const int parent : op.parents) visit(parent);
  }
  if (!candidate.is_result) return result;
  const auto above = result.ops.size();
  for (const int child : at(candidate.op).children) {
    if (is_forward_ || child <= position_) visit(child);
  }
  for (size_t i = above; i < result.ops.size() && result.ops.size() < kLongestWalk; ++i) {
    for (const int child : at(result.ops[i]).children) {
      if (is_forward_ || child <= position_) visit(child);
    }
  }
  return result;
}

void EvictionPool::join(const Candidate& candidate) {
  if (!candidate.is_result) return;  // nothing is computed from it
  const auto around = neighbourhood_of(candidate);
  const auto root = static_cast<int>(components_.size());
  components_.push_back({.parent = -1, .seconds = around.seconds});
  for (const int component : around.components) {
    components_[static_cast<size_t>(component)].parent = root;
  }
  for (const int op : around.ops) at(op).component = root;
}

// Seconds of the forward between the op that runs and the next whose backward reads the value; once
// all have, only replays of what is computed from it do.
double EvictionPool::distance_of(const Candidate& candidate) const {
  const auto passed = std::ranges::upper_bound(candidate.uses, position_);
  const int use = passed == candidate.uses.begin() ? candidate.op : *std::prev(passed);
  return std::max(at(position_).clock - at(std::min(use, position_)).clock, 0.0);
}

// ---- eviction

std::vector<EvictionPool::Group> EvictionPool::groups() {
  const auto is_gone = [](const Candidate& candidate) { return candidate.kept.expired(); };
  if (std::erase_if(candidates_, is_gone) > 0) {
    index_.clear();  // in backward nothing is added
    for (size_t i = 0; is_forward_ && i < candidates_.size(); ++i) {
      index_[candidates_[i].kept.lock().get()] = i;
    }
  }
  std::vector<Group> result;
  std::unordered_map<const c10::StorageImpl*, size_t> by_storage;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const auto kept = candidates_[i].kept.lock();
    if (!kept || !kept->is_intact()) continue;
    // One that a later segment reads belongs to no region any more.
    if (const auto region = kept->region(); !region || region->pool() != this) continue;
    const auto* const storage = storage_of(kept->tensor());
    const auto [place, is_new] = by_storage.try_emplace(storage, result.size());
    if (is_new) {
      result.push_back(
          {.pool = this, .storage = storage, .bytes = static_cast<int64_t>(storage->nbytes())});
    }
    auto& group = result[place->second];
    group.candidates.push_back(i);
    group.is_pinned |=
        kept->tensor().use_count() > 1 || std::ranges::find(pinned_, kept.get()) != pinned_.end();
  }
  std::erase_if(result, [&](const Group& group) {
    const auto holders = c10::raw::intrusive_ptr::use_count(
        const_cast<c10::StorageImpl*>(group.storage));  // only its count is read
    return group.is_pinned || holders != group.candidates.size();
  });
  return result;
}

// `later`: seconds of the forward until backward comes to this pool's ops.
std::vector<EvictionPool::Group> EvictionPool::scored_groups(double later) {
  auto all = groups();
  const double tiny = ops_.back().clock / static_cast<double>(ops_.size());
  for (auto& group : all) {
    double seconds = 0, distance = at(position_).clock;
    for (const size_t i : group.candidates) {
      seconds += neighbourhood_of(candidates_[i]).seconds;
      distance = std::min(distance, distance_of(candidates_[i]));
    }
    group.score = seconds / (static_cast<double>(group.bytes) * (later + distance + tiny));
  }
  return all;
}

void EvictionPool::evict(const Group& group) {
  for (const size_t i : group.candidates) {
    const auto kept = candidates_[i].kept.lock();
    if (before_evict_) before_evict_(*kept);
    kept->evict();
    join(candidates_[i]);
  }
}

bool EvictionPool::has_results_only(const Group& group) const {
  return std::ranges::all_of(group.candidates, [&](size_t i) { return candidates_[i].is_result; });
}

int64_t EvictionPool::evict(int64_t bytes) {
  if (t_evicting) return 0;
  struct Evicting {
    Evicting() { t_evicting = true; }
    ~Evicting() { t_evicting = false; }
  } const evicting;
  const auto began = std::chrono::steady_clock::now();
  auto& registry = Registry::get();
  const std::scoped_lock lock(registry.mutex);
  const UnrecordedScope unrecorded;
  bytes = std::max(bytes, BudgetAllocator::cpu().counter().live() / kAtOnce);
  // Those of a later forward are read by backward before those of an earlier one.
  std::vector<EvictionPool*> pools;
  std::vector<Group> all;
  double later = 0;
  for (auto* pool : registry.pools | std::views::reverse) {
    if (pool->thread_.load() != std::this_thread::get_id() || pool->ops_.empty()) continue;
    pools.push_back(pool);
    auto groups = pool->scored_groups(later);
    all.insert(all.end(), std::make_move_iterator(groups.begin()),
               std::make_move_iterator(groups.end()));
    later += pool->at(pool->position_).clock;
  }
  std::ranges::sort(all, {}, &Group::score);
  // The bits of a dropout's mask need room before it is freed.
  const auto first = std::ranges::find_if(
      all, [](const Group& group) { return group.pool->has_results_only(group); });
  if (first != all.end()) std::rotate(all.begin(), first, first + 1);
  int64_t freed = 0;
  for (const auto& group : all) {
    if (freed >= bytes) break;
    group.pool->evict(group);
    freed += counted_bytes(static_cast<size_t>(group.bytes));
  }
  const double seconds = seconds_since(began);
  leave_out_of_replay(seconds);
  // The observer of one is that of all: a step is measured as a whole.
  const auto observed = std::ranges::find_if(
      pools, [](const auto* pool) { return static_cast<bool>(pool->evicted_); });
  if (observed != pools.end()) (*observed)->evicted_(freed, seconds);
  return freed;
}

}  // namespace fleet::memory
