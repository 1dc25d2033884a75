#include "fleet/memory/memory_counter.h"

#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <string_view>

#include <c10/util/Exception.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/byte_size.h"
#include "fleet/core/format.h"
#include "fleet/core/torch_compat.h"
#include "fleet/memory/budget_allocator.h"

namespace fleet::memory {
namespace {

std::atomic<Phase> present_phase{Phase::kOther};

const char* tag_or_op() {
  if (const char* tag = AllocationTag::current()) return tag;
  return compat::current_op();
}

std::atomic<OwnerSource> owner_source{&tag_or_op};

thread_local int t_no_refusal = 0;

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
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                              &std::free);
  if (status != 0) return name;
  std::string_view rest = text.get();
  for (std::string_view prefix : {"torch::autograd::", "generated::"})
    if (rest.starts_with(prefix)) rest.remove_prefix(prefix.size());
  return std::string(rest);
}

}  // namespace

PhaseScope::PhaseScope(Phase phase) : previous_(present_phase.exchange(phase)) {
  BudgetAllocator::cpu().counter().enter(phase);
  BudgetAllocator::meta().counter().enter(phase);
}

PhaseScope::~PhaseScope() {
  present_phase = previous_;
  BudgetAllocator::cpu().counter().enter(previous_);
  BudgetAllocator::meta().counter().enter(previous_);
}

NoRefusalScope::NoRefusalScope() { ++t_no_refusal; }
NoRefusalScope::~NoRefusalScope() { --t_no_refusal; }

void set_owner_source(OwnerSource source) {
  owner_source = source != nullptr ? source : &tag_or_op;
}

MemoryCounter::MemoryCounter(const char* device)
    : device_(device), owners_(std::make_unique<std::array<Owner, kOwners + 1>>()) {
  owners_->back().name = "others";
}

void MemoryCounter::reset_peaks() {
  for (auto& peak : phase_peaks_) peak = 0;
  peak_ = live();
  enter(present_phase);
}

void MemoryCounter::enter(Phase phase) { raise(phase_peaks_[static_cast<size_t>(phase)], live()); }

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

void MemoryCounter::set_waiter(bool (*wait)()) { waiter_ = wait; }

MemoryCounter::Owner& MemoryCounter::owner(const char* name) {
  const auto hash = (reinterpret_cast<uintptr_t>(name) * 0x9E3779B97F4A7C15u) >> 40;
  for (size_t probe = 0; probe < 64; ++probe) {
    Owner& slot = (*owners_)[(hash + probe) % kOwners];
    const char* seen = slot.name.load(std::memory_order_relaxed);
    if (seen == name) return slot;
    if (seen == nullptr &&
        (slot.name.compare_exchange_strong(seen, name, std::memory_order_relaxed) || seen == name))
      return slot;
  }
  return owners_->back();
}

bool MemoryCounter::make_room(int64_t bytes) const {
  const int64_t budget = budget_.load(std::memory_order_relaxed);
  if (budget == kNoBudget) return true;
  const int64_t room = budget - live() - bytes;
  if (cached_ != nullptr && cached_->load(std::memory_order_relaxed) > room)
    reclaim_(std::max<int64_t>(room, 0));
  return room >= 0;
}

void MemoryCounter::count(int64_t bytes, const char* owner_name) {
  make_room(bytes);
  int64_t live = live_.load(std::memory_order_relaxed);
  for (;;) {
    const int64_t budget = budget_.load(std::memory_order_relaxed);
    if (bytes > budget - live && t_no_refusal == 0) {
      const auto wait = waiter_.load(std::memory_order_relaxed);
      if (!wait || !wait()) refuse(bytes, live, budget, owner_name);
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
  raise(phase_peaks_[static_cast<size_t>(present_phase.load(std::memory_order_relaxed))], live);
}

MemoryCounter::Owner& MemoryCounter::add(int64_t bytes) {
  const char* name = owner_source.load(std::memory_order_relaxed)();
  if (name == nullptr) name = allocation::kProgram;
  count(bytes, name);
  Owner& mine = owner(name);
  mine.bytes.fetch_add(bytes, std::memory_order_relaxed);
  mine.blocks.fetch_add(1, std::memory_order_relaxed);
  blocks_.fetch_add(1, std::memory_order_relaxed);
  return mine;
}

void MemoryCounter::remove(int64_t bytes, Owner& owner) noexcept {
  owner.bytes.fetch_sub(bytes, std::memory_order_relaxed);
  owner.blocks.fetch_sub(1, std::memory_order_relaxed);
  blocks_.fetch_sub(1, std::memory_order_relaxed);
  live_.fetch_sub(bytes, std::memory_order_relaxed);
}

void MemoryCounter::charge(int64_t bytes, const char* owner_name) {
  count(bytes, owner_name);
  Owner& mine = owner(owner_name);
  mine.bytes.fetch_add(bytes, std::memory_order_relaxed);
  mine.blocks.fetch_add(1, std::memory_order_relaxed);
}

void MemoryCounter::release(int64_t bytes, const char* owner_name) {
  Owner& mine = owner(owner_name);
  mine.bytes.fetch_sub(bytes, std::memory_order_relaxed);
  mine.blocks.fetch_sub(1, std::memory_order_relaxed);
  live_.fetch_sub(bytes, std::memory_order_relaxed);
}

std::vector<MemoryCounter::OwnerUse> MemoryCounter::largest_owners(size_t count) const {
  std::map<std::string, OwnerUse> by_name;
  for (const Owner& owner : *owners_) {
    const char* name = owner.name.load(std::memory_order_relaxed);
    if (name == nullptr || owner.blocks.load() == 0) continue;
    auto& use = by_name[readable(name)];
    use.bytes += owner.bytes.load();
    use.blocks += owner.blocks.load();
  }
  std::vector<OwnerUse> uses;
  for (auto& [name, use] : by_name) uses.push_back({name, use.bytes, use.blocks});
  std::stable_sort(uses.begin(), uses.end(),
                   [](const OwnerUse& a, const OwnerUse& b) { return a.bytes > b.bytes; });
  if (uses.size() > count) uses.resize(count);
  return uses;
}

void MemoryCounter::refuse(int64_t bytes, int64_t live, int64_t budget, const char* owner) const {
  std::string text = format(
      "[memory] {} asks for {} of {} memory, but {} are live and the budget is {}, so {} are "
      "missing",
      readable(owner), byte_size_text(bytes), device_, byte_size_text(live), byte_size_text(budget),
      byte_size_text(bytes - (budget - live)));
  const auto largest = largest_owners(5);
  if (!largest.empty()) text += "\n  largest owners:";
  for (const auto& use : largest)
    text += format("\n    {:>12}  {} ({} {})", byte_size_text(use.bytes), use.name, use.blocks,
                   use.blocks == 1 ? "block" : "blocks");
  text += "\n  fix: raise the budget, or make the micro-batch smaller";
  TORCH_CHECK_WITH(OutOfMemoryError, false, text);
}

}  // namespace fleet::memory
