// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/memory/plain_memory.h"

#include <algorithm>

#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/resident_memory.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kCounts = false;
#else
constexpr bool kCounts = true;
#endif

}  // namespace

PlainMemory::PlainMemory() {
  if (!kCounts) return;
  try {
    counting_ = std::make_unique<memory::BudgetAllocatorScope>(memory::BudgetAllocator::cpu());
  } catch (const Error& error) {
    log::info("memory", format("tensors are not counted: {}", error.what()));
  }
}

void PlainMemory::begin() {
  if (counting_) memory::BudgetAllocator::cpu().counter().take_call_peak();
}

MemoryReport PlainMemory::report(bool updated, bool window_is_open) {
  MemoryReport report{.is_resident = counting_ == nullptr};
  if (counting_) {
    auto& counter = memory::BudgetAllocator::cpu().counter();
    report.measured_peak = std::max(window_peak_, counter.take_call_peak());
    report.now = counter.live();
  } else {
    report.measured_peak = peak_resident_bytes();
    report.now = resident_bytes();
  }
  window_peak_ = window_is_open ? report.measured_peak : 0;
  peak_ = std::max(peak_, report.measured_peak);
  report.plain_peak = peak_;
  if (updated && ++updates_ == 2) {
    log::info("memory",
              format("plain training takes {}{} at the peak; no budget is in force",
                     byte_size_text(peak_),
                     counting_ ? "" : " of resident memory, code and libraries included,"));
  }
  return report;
}

}  // namespace fleet
