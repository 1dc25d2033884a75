// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>

#include "fleet/memory/allocator/memory_counter.h"

namespace c10 {
class DataPtr;
}

namespace fleet::memory {

/// Fleet's allocator for tensors of one device: counts them, holds them to a budget, and on the CPU
/// keeps big blocks for the next step (see BlockCache).
///
/// On meta tensors it allocates nothing and counts all the same, so that a program run on them
/// shows its memory use without the machine. Meta tensors that are resized in place are not
/// counted: LibTorch does not call the allocator.
///
///   auto& memory = BudgetAllocator::cpu();
///   memory.switch_on();                               // tensors made from now on are counted
///   memory.counter().set_budget(int64_t{4} << 30);
///   train_step();
///   log::info("memory", byte_size_text(memory.counter().peak()));
class BudgetAllocator {
 public:
  static BudgetAllocator& cpu();
  static BudgetAllocator& meta();

  /// Not while other threads allocate tensors. Tensors made before are not counted; those made
  /// while it was on are counted until they are freed. The cache stays; `trim` frees it. While it
  /// is off and the last counted tensor is gone, LibTorch has the allocator from before.
  void switch_on();
  void switch_off();
  bool is_on() const;

  MemoryCounter& counter() { return counter_; }
  /// Whether this memory was made here, and so is counted.
  bool has_made(const c10::DataPtr& data) const;

  /// Counted bytes and those in the cache. Close to what the process holds for tensors.
  int64_t reserved() const;

  /// Frees the cache.
  void trim();

  BudgetAllocator(const BudgetAllocator&) = delete;
  BudgetAllocator& operator=(const BudgetAllocator&) = delete;

 private:
  struct Cpu;
  struct Meta;
  enum class Kind { kCpu, kMeta };
  explicit BudgetAllocator(Kind kind);

  friend class BudgetAllocatorScope;
  void enter_scope();
  void leave_scope();

  const Kind kind_;
  MemoryCounter counter_;
  std::mutex scopes_mutex_;  // guards the next two
  int scopes_ = 0;
  bool was_on_ = false;  // before the first of them
};

/// Counts while it lives. Several may live at once: the last one's end switches the allocator off,
/// unless it was on before the first.
class BudgetAllocatorScope {
 public:
  explicit BudgetAllocatorScope(BudgetAllocator& allocator) : allocator_(allocator) {
    allocator_.enter_scope();
  }
  ~BudgetAllocatorScope() { allocator_.leave_scope(); }
  BudgetAllocatorScope(const BudgetAllocatorScope&) = delete;
  BudgetAllocatorScope& operator=(const BudgetAllocatorScope&) = delete;

 private:
  BudgetAllocator& allocator_;
};

}  // namespace fleet::memory
