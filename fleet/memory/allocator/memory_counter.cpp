// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/allocator/memory_counter.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/allocator/budget_exceeded.h"
#include "fleet/memory/allocator/last_resort.h"

namespace fleet::memory {
namespace {

std::atomic<StepPhase> current_phase{StepPhase::kOther};

const char* tag_or_op() {
  if (const char* tag = AllocationTag::current()) return tag;
  return compat::current_op();
}

std::atomic<TagSource> tag_source{&tag_or_op};

thread_local int t_budget_exempt = 0;

void raise(std::atomic<int64_t>& highest, int64_t value) {
  int64_t seen = highest.load(std::memory_order_relaxed);
  while (value > seen && !highest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

/// "N5torch8autograd9generated10MmBackward0E" to "MmBackward0"; names of ops stay.
std::string readable(const char* name) {
  const bool is_type = std::isdigit(static_cast<unsigned char>(name[0])) ||
                       (name[0] == 'N' && std::isdigit(static_cast<unsigned char>(name[1])));
  if (!is_type) return name;
  const auto text = c10::demangle(name);
  std::string_view rest = text;
  for (std::string_view prefix : {"torch::autograd::", "generated::"})
    if (rest.starts_with(prefix)) rest.remove_prefix(prefix.size());
  return std::string(rest);
}

}  // namespace

StepPhaseScope::StepPhaseScope(StepPhase phase) : previous_(current_phase.exchange(phase)) {
  BudgetAllocator::cpu().counter().enter(phase);
  BudgetAllocator::meta().counter().enter(phase);
}

StepPhaseScope::~StepPhaseScope() {
  current_phase = previous_;
  BudgetAllocator::cpu().counter().enter(previous_);
  BudgetAllocator::meta().counter().enter(previous_);
}

BudgetExemptScope::BudgetExemptScope() { ++t_budget_exempt; }
BudgetExemptScope::~BudgetExemptScope() { --t_budget_exempt; }

void set_tag_source(TagSource source) { tag_source = source != nullptr ? source : &tag_or_op; }

MemoryCounter::MemoryCounter(const char* device)
    : device_(device), tags_(std::make_unique<std::array<Tag, kTags + 1>>()) {
  tags_->back().name = "others";
}

void MemoryCounter::reset_peaks() {
  for (auto& peak : phase_peaks_) peak = 0;
  peak_ = live();
  enter(current_phase);
}

void MemoryCounter::enter(StepPhase phase) {
  raise(phase_peaks_[static_cast<size_t>(phase)], live());
}

void MemoryCounter::set_budget(std::optional<int64_t> bytes) {
  {
    const std::lock_guard lock(budget_mutex_);
    set_budget_ = bytes.value_or(kNoBudget);
    budget_ = scope_budgets_.empty() ? set_budget_ : std::min(set_budget_, *scope_budgets_.begin());
  }
  make_room(0);
}

void MemoryCounter::change_scopes(std::optional<int64_t> removed, std::optional<int64_t> added) {
  {
    const std::lock_guard lock(budget_mutex_);
    if (removed) scope_budgets_.erase(scope_budgets_.find(*removed));
    if (added) scope_budgets_.insert(*added);
    budget_ = scope_budgets_.empty() ? set_budget_ : std::min(set_budget_, *scope_budgets_.begin());
  }
  make_room(0);
}

std::optional<int64_t> MemoryCounter::budget() const {
  const int64_t bytes = budget_;
  if (bytes == kNoBudget) return {};
  return bytes;
}

void MemoryCounter::set_cache(const std::atomic<int64_t>* cached, void (*reclaim)(int64_t)) {
  cached_ = cached;
  reclaim_ = reclaim;
}

void MemoryCounter::set_evictor(int64_t (*evict)(int64_t)) { evictor_ = evict; }
void MemoryCounter::evict_for(int64_t bytes) {
  const int64_t budget = budget_.load(std::memory_order_relaxed);
  if (budget == kNoBudget || t_budget_exempt > 0) return;
  const int64_t missing = bytes - (budget - live());
  const auto evict = evictor_.load(std::memory_order_relaxed);
  if (missing > 0 && evict) evict(missing);
}
void MemoryCounter::set_waiter(bool (*wait)()) { waiter_ = wait; }

MemoryCounter::Tag& MemoryCounter::tag(const char* name) {
  const auto hash = (reinterpret_cast<uintptr_t>(name) * 0x9E3779B97F4A7C15u) >> 40;
  for (size_t probe = 0; probe < 64; ++probe) {
    Tag& slot = (*tags_)[(hash + probe) % kTags];
    const char* seen = slot.name.load(std::memory_order_relaxed);
    if (seen == name) return slot;
    if (seen == nullptr &&
        (slot.name.compare_exchange_strong(seen, name, std::memory_order_relaxed) || seen == name))
      return slot;
  }
  return tags_->back();
}

bool MemoryCounter::make_room(int64_t bytes) const {
  const int64_t budget = budget_.load(std::memory_order_relaxed);
  if (budget == kNoBudget) return true;
  const int64_t room = budget - live() - bytes;
  if (cached_ != nullptr && cached_->load(std::memory_order_relaxed) > room)
    reclaim_(std::max<int64_t>(room, 0));
  return room >= 0;
}

void MemoryCounter::count(int64_t bytes, const char* tag_name) {
  make_room(bytes);
  int64_t live = live_.load(std::memory_order_relaxed);
  for (;;) {
    const int64_t budget = budget_.load(std::memory_order_relaxed);
    if (bytes > budget - live && t_budget_exempt == 0) {
      const auto evict = evictor_.load(std::memory_order_relaxed);
      const auto wait = waiter_.load(std::memory_order_relaxed);
      const bool has_freed = evict && evict(bytes - (budget - live)) > 0;
      if (!has_freed && (!wait || !wait()) && !LastResortScope::raise_budget()) {
        throw_exceeded(bytes, live, budget, tag_name);
      }
      live = live_.load(std::memory_order_relaxed);
      continue;
    }
    if (live_.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed)) break;
  }
  make_room(0);  // other threads may have taken what was there above
  raise_peaks(live + bytes);
}

void MemoryCounter::raise_peaks(int64_t live) {
  raise(peak_, live);
  raise(window_peak_, live);
  raise(call_peak_, live);
  raise(phase_peaks_[static_cast<size_t>(current_phase.load(std::memory_order_relaxed))], live);
}

MemoryCounter::Tag& MemoryCounter::add(int64_t bytes) {
  const char* name = tag_source.load(std::memory_order_relaxed)();
  if (name == nullptr) name = allocation::kProgram;
  count(bytes, name);
  Tag& mine = tag(name);
  mine.bytes.fetch_add(bytes, std::memory_order_relaxed);
  mine.blocks.fetch_add(1, std::memory_order_relaxed);
  blocks_.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

void MemoryCounter::remove(int64_t bytes, Tag& tag) noexcept {
  tag.bytes.fetch_sub(bytes, std::memory_order_relaxed);
  tag.blocks.fetch_sub(1, std::memory_order_relaxed);
  blocks_.fetch_sub(1, std::memory_order_relaxed);
  live_.fetch_sub(bytes, std::memory_order_relaxed);
}

void MemoryCounter::charge(int64_t bytes, const char* tag_name) {
  count(bytes, tag_name);
  Tag& mine = tag(tag_name);
  mine.bytes.fetch_add(bytes, std::memory_order_relaxed);
  mine.blocks.fetch_add(1, std::memory_order_relaxed);
}

void MemoryCounter::release(int64_t bytes, const char* tag_name) {
  Tag& mine = tag(tag_name);
  mine.bytes.fetch_sub(bytes, std::memory_order_relaxed);
  mine.blocks.fetch_sub(1, std::memory_order_relaxed);
  live_.fetch_sub(bytes, std::memory_order_relaxed);
}

std::vector<MemoryCounter::TagUse> MemoryCounter::largest_tags(size_t count) const {
  std::map<std::string, TagUse> by_name;
  for (const Tag& tag : *tags_) {
    const char* name = tag.name.load(std::memory_order_relaxed);
    if (name == nullptr || tag.blocks.load() == 0) continue;
    auto& use = by_name[readable(name)];
    use.bytes += tag.bytes.load();
    use.blocks += tag.blocks.load();
  }
  std::vector<TagUse> uses;
  for (auto& [name, use] : by_name) uses.push_back({name, use.bytes, use.blocks});
  std::stable_sort(uses.begin(), uses.end(),
                   [](const TagUse& a, const TagUse& b) { return a.bytes > b.bytes; });
  if (uses.size() > count) uses.resize(count);
  return uses;
}

void MemoryCounter::throw_exceeded(int64_t bytes, int64_t live, int64_t budget,
                                   const char* tag) const {
  std::string text = format(
      "[memory] {} asks for {} of {} memory, but {} are live and the budget is {}, so {} are "
      "missing",
      readable(tag), byte_size_text(bytes), device_, byte_size_text(live), byte_size_text(budget),
      byte_size_text(bytes - (budget - live)));
  const auto largest = largest_tags(5);
  if (!largest.empty()) text += "\n  largest allocation tags:";
  for (const auto& use : largest)
    text += format("\n    {:>12}  {} ({} {})", byte_size_text(use.bytes), use.name, use.blocks,
                   use.blocks == 1 ? "block" : "blocks");
  text += "\n  fix: raise the budget, or make the micro-batch smaller";
  throw BudgetExceeded({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
}

}  // namespace fleet::memory
