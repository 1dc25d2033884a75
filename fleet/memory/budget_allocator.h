#pragma once

#include <cstdint>

#include "fleet/memory/memory_counter.h"

namespace fleet::memory {

/// Fleet's allocator for tensors of one device: counts them, holds them to a budget, and on the CPU
/// keeps big blocks for the next step (see BlockCache).
///
/// On meta tensors it allocates nothing and counts all the same, so that a program run on them
/// shows the memory curve of a machine that is not here. Meta tensors that are resized in place
/// are not followed: the engine does not tell.
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

  /// Not while other threads allocate tensors. Tensors made before are not counted, and free as
  /// they would; those made while it was on are counted until they are freed, whenever that is.
  /// The cache stays for the next time; `trim` gives it back.
  void switch_on();
  void switch_off();
  bool is_on() const;

  MemoryCounter& counter() { return counter_; }

  /// Counted bytes and those in the cache. Close to what the process holds for tensors.
  int64_t reserved() const;

  /// Gives the cache back to the system.
  void trim();

  BudgetAllocator(const BudgetAllocator&) = delete;
  BudgetAllocator& operator=(const BudgetAllocator&) = delete;

 private:
  struct Cpu;
  struct Meta;
  enum class Kind { kCpu, kMeta };
  explicit BudgetAllocator(Kind kind);

  const Kind kind_;
  MemoryCounter counter_;
};

/// Counts while it lives.
class BudgetAllocatorScope {
 public:
  explicit BudgetAllocatorScope(BudgetAllocator& allocator)
      : allocator_(allocator), was_on_(allocator.is_on()) {
    allocator_.switch_on();
  }
  ~BudgetAllocatorScope() {
    if (!was_on_) allocator_.switch_off();
  }
  BudgetAllocatorScope(const BudgetAllocatorScope&) = delete;
  BudgetAllocatorScope& operator=(const BudgetAllocatorScope&) = delete;

 private:
  BudgetAllocator& allocator_;
  bool was_on_;
};

}  // namespace fleet::memory
