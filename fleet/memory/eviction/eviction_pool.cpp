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
constexpr int64_t kPerScan = 16;     // a fraction of what is live is freed at most until the next

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
  c10::SmallVector<size_t, 2> candidates;
  bool has_results_only = true;
  double score = 0;
  int64_t scored = 0;  // the state of things of which the score is
};

// What a scan of all candidates found and is not evicted yet, as a heap with the least score in
// front. Scores become outdated: one that comes to the front is computed anew first.
struct EvictionPool::Order {
  std::thread::id thread;
  std::vector<Group> heap;
  int64_t left = 0;   // bytes until the next scan
  int64_t state = 0;  // changes with every eviction

  static Order& get() {
    static auto* const order = new Order();
    return *order;
  }
  static bool is_behind(const Group& a, const Group& b) { return a.score > b.score; }

  void clear() {
    heap.clear();
    left = 0;
  }
  void add(Group group) {
    heap.push_back(std::move(group));
    std::ranges::push_heap(heap, is_behind);
  }
  // The bits of a dropout's mask need room before it is freed: it is not the first.
  Group take(bool is_first) {
    if (is_first && !heap.front().has_results_only) {
      auto best = heap.end();
      for (auto group = heap.begin(); group != heap.end(); ++group) {
        if (group->has_results_only && (best == heap.end() || group->score < best->score)) {
          best = group;
        }
      }
      if (best != heap.end()) {
        best->score = -1;  // to the front
        std::ranges::make_heap(heap, is_behind);
      }
    }
    std::ranges::pop_heap(heap, is_behind);
    auto group = std::move(heap.back());
    heap.pop_back();
    return group;
  }
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
  Order::get().clear();
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

bool EvictionPool::is_evictable(const KeptValue& kept) const {
  if (!kept.is_intact()) return false;
  // One that a later segment reads belongs to no region any more.
  const auto region = kept.region();
  return region && region->pool() == this;
}

// Nothing else holds it, and nobody is about to read it.
bool EvictionPool::is_evictable(const Group& group) const {
  if (thread_.load() != std::this_thread::get_id()) return false;
  for (const size_t i : group.candidates) {
    const auto kept = candidates_[i].kept.lock();
    if (!kept || !is_evictable(*kept) || storage_of(kept->tensor()) != group.storage) return false;
    if (kept->tensor().use_count() > 1) return false;
    if (std::ranges::find(pinned_, kept.get()) != pinned_.end()) return false;
  }
  const auto holders = c10::raw::intrusive_ptr::use_count(
      const_cast<c10::StorageImpl*>(group.storage));  // only its count is read
  return holders == group.candidates.size();
}

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
    if (!kept || !is_evictable(*kept)) continue;
    const auto* const storage = storage_of(kept->tensor());
    const auto [place, is_new] = by_storage.try_emplace(storage, result.size());
    if (is_new) {
      result.push_back(
          {.pool = this, .storage = storage, .bytes = static_cast<int64_t>(storage->nbytes())});
    }
    auto& group = result[place->second];
    group.candidates.push_back(i);
    group.has_results_only &= candidates_[i].is_result;
  }
  std::erase_if(result, [&](const Group& group) { return !is_evictable(group); });
  return result;
}

void EvictionPool::set_score(Group& group) {
  const double tiny = ops_.back().clock / static_cast<double>(ops_.size());
  double seconds = 0, distance = at(position_).clock;
  for (const size_t i : group.candidates) {
    seconds += neighbourhood_of(candidates_[i]).seconds;
    distance = std::min(distance, distance_of(candidates_[i]));
  }
  group.score = seconds / (static_cast<double>(group.bytes) * (later_ + distance + tiny));
  group.scored = Order::get().state;
}

void EvictionPool::evict(const Group& group) {
  for (const size_t i : group.candidates) {
    const auto kept = candidates_[i].kept.lock();
    if (before_evict_) before_evict_(*kept);
    kept->evict();
    join(candidates_[i]);
  }
}

// Looks at every candidate of these pools.
void EvictionPool::scan(const std::vector<EvictionPool*>& pools) {
  auto& order = Order::get();
  order.thread = std::this_thread::get_id();
  order.left = BudgetAllocator::cpu().counter().live() / kPerScan;
  order.heap.clear();
  for (auto* const pool : pools) {
    for (auto& group : pool->groups()) {
      pool->set_score(group);
      order.heap.push_back(std::move(group));
    }
  }
  std::ranges::make_heap(order.heap, Order::is_behind);
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
  double later = 0;
  for (auto* pool : registry.pools | std::views::reverse) {
    if (pool->thread_.load() != std::this_thread::get_id() || pool->ops_.empty()) continue;
    pools.push_back(pool);
    pool->later_ = later;
    later += pool->at(pool->position_).clock;
  }
  auto& order = Order::get();
  ++order.state;
  if (order.thread != std::this_thread::get_id() || order.left <= 0) order.clear();
  int64_t freed = 0;
  for (bool has_scanned = false; freed < bytes;) {
    if (order.heap.empty()) {
      if (std::exchange(has_scanned, true)) break;
      scan(pools);
      continue;
    }
    auto group = order.take(/*is_first=*/freed == 0);
    if (!group.pool->is_evictable(group)) continue;
    if (group.scored != order.state) {
      group.pool->set_score(group);
      if (!order.heap.empty() && group.score > order.heap.front().score) {
        order.add(std::move(group));
        continue;
      }
    }
    group.pool->evict(group);
    ++order.state;
    order.left -= group.bytes;
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
