// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fleet::memory {

/// Which part of a step the process is in; peaks are kept for each.
enum class StepPhase { kOther, kForward, kBackward, kUpdate };

/// Sets the phase of the whole process while it lives, then the previous one again.
class StepPhaseScope {
 public:
  explicit StepPhaseScope(StepPhase phase);
  ~StepPhaseScope();
  StepPhaseScope(const StepPhaseScope&) = delete;
  StepPhaseScope& operator=(const StepPhaseScope&) = delete;

 private:
  StepPhase previous_;
};

/// Names what the calling thread allocates for. The text must live as long as the process (a
/// literal, the name of a registered op, the name of a type_info): only its address is kept.
using TagSource = const char* (*)();

/// For all counters; null for the default: this thread's AllocationTag, else the op of a recorded
/// forward or the node of a backward that it is in, else `allocation::kProgram`.
void set_tag_source(TagSource source);

/// What a block of so many bytes counts.
constexpr int64_t counted_bytes(size_t bytes) {
  return static_cast<int64_t>((bytes + 63) / 64 * 64);
}

/// Counts tensor bytes and holds them to a budget. Any thread may call anything; `add` and `remove`
/// take no lock.
///
///   auto& counter = BudgetAllocator::cpu().counter();
///   counter.set_budget(int64_t{12} << 30);
///   counter.reset_peaks();
///   train_step();                       // c10::OutOfMemoryError above 12 GiB
///   log::info("memory", byte_size_text(counter.peak(StepPhase::kBackward)));
class MemoryCounter {
 public:
  /// Live bytes and blocks of one allocation tag.
  struct Tag {
    std::atomic<const char*> name{nullptr};
    std::atomic<int64_t> bytes{0};
    std::atomic<int64_t> blocks{0};
  };
  struct TagUse {
    std::string name;
    int64_t bytes = 0;
    int64_t blocks = 0;
  };

  /// `device` is for the error text.
  explicit MemoryCounter(const char* device);

  /// Bytes asked for and not yet freed, each block rounded up to 64, and those of `charge`.
  int64_t live() const { return live_.load(std::memory_order_relaxed); }
  int64_t live_blocks() const { return blocks_.load(std::memory_order_relaxed); }

  /// The highest `live` since `reset_peaks`; with a phase, while the process was in it.
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  int64_t peak(StepPhase phase) const { return phase_peaks_[static_cast<size_t>(phase)].load(); }
  void reset_peaks();

  /// The highest `live` since the last call, which starts anew from the present value.
  int64_t take_window_peak() { return window_peak_.exchange(live()); }
  /// Likewise for the calls of a training: `take_window_peak` is for the ops within one.
  int64_t take_call_peak() { return call_peak_.exchange(live()); }

  /// Above it, `add` throws. Empty: no budget. With a budget below `live` the next `add` throws.
  void set_budget(std::optional<int64_t> bytes);
  /// The smallest of that and of all BudgetScopes.
  std::optional<int64_t> budget() const;

  /// Bytes outside of the counted allocator that belong in the budget, such as an arena
  /// mapped elsewhere or parameters older than the counting. `tag` as for a TagSource.
  void charge(int64_t bytes, const char* tag);
  void release(int64_t bytes, const char* tag);

  /// The largest first; tags of the same name are added up.
  std::vector<TagUse> largest_tags(size_t count) const;

  /// For allocators: counts a block of `bytes` for the current tag. Throws BudgetExceeded, which is
  /// a c10::OutOfMemoryError, if it does not fit, and then changes nothing.
  Tag& add(int64_t bytes);
  void remove(int64_t bytes, Tag& tag) noexcept;

  /// For allocators with a cache: `cached` bytes count against the budget too, and `reclaim(n)`
  /// must bring them down to n.
  void set_cache(const std::atomic<int64_t>* cached, void (*reclaim)(int64_t bytes));

  /// For values that can be recomputed: called with the missing bytes before anything else is
  /// tried, on the thread that allocates. Returns the bytes that it freed.
  void set_evictor(int64_t (*evict)(int64_t missing));

  /// Evicts what `bytes` more need beyond the budget, so that a block can be made of its pages.
  void evict_for(int64_t bytes);

  /// For code that frees memory on a thread of its own: called before `add` throws, again and again
  /// until it returns false, when nothing more will be freed. May block.
  void set_waiter(bool (*wait)());

  /// Frees cached blocks until they, `live` and `bytes` more fit into the budget; false if `bytes`
  /// do not fit even without them.
  bool make_room(int64_t bytes) const;

  /// For StepPhaseScope.
  void enter(StepPhase phase);

 private:
  static constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max();
  static constexpr size_t kTags = 4096;  // then the rest shares one

  friend class BudgetScope;
  void change_scopes(std::optional<int64_t> removed, std::optional<int64_t> added);

  Tag& tag(const char* name);
  void count(int64_t bytes, const char* tag_name);
  void raise_peaks(int64_t live);
  [[noreturn]] void throw_exceeded(int64_t bytes, int64_t live, int64_t budget,
                                   const char* tag) const;

  const char* device_;
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> blocks_{0};
  std::atomic<int64_t> peak_{0};
  std::atomic<int64_t> window_peak_{0};
  std::atomic<int64_t> call_peak_{0};
  std::array<std::atomic<int64_t>, 4> phase_peaks_{};
  std::atomic<int64_t> budget_{kNoBudget};  // the smallest of the next two
  int64_t set_budget_ = kNoBudget;
  std::multiset<int64_t> scope_budgets_;
  mutable std::mutex budget_mutex_;                   // guards both
  std::unique_ptr<std::array<Tag, kTags + 1>> tags_;  // hashed by the name's address
  const std::atomic<int64_t>* cached_ = nullptr;
  void (*reclaim_)(int64_t) = nullptr;
  std::atomic<int64_t (*)(int64_t)> evictor_{nullptr};
  std::atomic<bool (*)()> waiter_{nullptr};
};

/// What this thread allocates while it lives is counted, but never throws: for bookkeeping of a few
/// KiB that must not fail where memory is short already.
class BudgetExemptScope {
 public:
  BudgetExemptScope();
  ~BudgetExemptScope();
  BudgetExemptScope(const BudgetExemptScope&) = delete;
  BudgetExemptScope& operator=(const BudgetExemptScope&) = delete;
};

/// A budget while it lives. Several may live at once, in any order, on any thread: the smallest
/// applies.
///
///   BudgetScope budget(BudgetAllocator::cpu().counter(), int64_t{12} << 30);
class BudgetScope {
 public:
  BudgetScope(MemoryCounter& counter, int64_t bytes) : counter_(counter), bytes_(bytes) {
    counter_.change_scopes(std::nullopt, bytes_);
  }
  ~BudgetScope() { counter_.change_scopes(bytes_, std::nullopt); }
  BudgetScope(const BudgetScope&) = delete;
  BudgetScope& operator=(const BudgetScope&) = delete;

  void set(int64_t bytes) {
    counter_.change_scopes(bytes_, bytes);
    bytes_ = bytes;
  }

 private:
  MemoryCounter& counter_;
  int64_t bytes_;
};

}  // namespace fleet::memory
