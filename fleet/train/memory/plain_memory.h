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

  /// A call begins: its peak is measured from here on.
  void begin();
  /// Of that call; says it once, after the second update, when everything is there.
  MemoryReport report(bool updated);

 private:
  std::unique_ptr<memory::BudgetAllocatorScope> counting_;  // null: resident memory
  int64_t peak_ = 0;
  int64_t updates_ = 0;
};

}  // namespace fleet
