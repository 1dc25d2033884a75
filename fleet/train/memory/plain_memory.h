// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/train/memory/memory_report.h"

namespace fleet {

/// What training takes where nothing is recomputed: tensors are counted all the same, which costs
/// no time (blocks of huge pages are kept for the next step, see BlockCache). Where another
/// allocator is in the way, or an address sanitizer that wants to see every block, the resident
/// memory of the process is told instead.
class PlainMemory {
 public:
  PlainMemory();

  /// A call begins, or the user's own forward: the peak is measured from here on.
  void begin();
  /// Of the window so far; logs it once, after the second update, when all state is allocated.
  MemoryReport report(bool updated, bool window_is_open);
  /// Resets the window's peak.
  void drop_window() { window_peak_ = 0; }

 private:
  std::unique_ptr<memory::BudgetAllocatorScope> counting_;  // null: resident memory
  int64_t window_peak_ = 0;                                 // of the calls before this one
  int64_t peak_ = 0;
  int64_t updates_ = 0;
};

}  // namespace fleet
