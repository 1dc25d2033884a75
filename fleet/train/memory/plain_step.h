// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "fleet/memory/allocator/memory_counter.h"
#include "fleet/memory/plan/budget_plans.h"
#include "fleet/memory/plan/profile/profiler.h"

namespace fleet {

/// What plain training would take where checkpoints are named: one step is profiled for it, the
/// second, since the first meets cold caches. A program that runs only one needs no such figure.
class PlainStep {
 public:
  /// A forward of these samples begins. The profiler that is to record it; null: it is not the one.
  std::shared_ptr<memory::Profiler> begin(memory::MemoryCounter& counter, int64_t samples);
  /// After its backward. `staging`: bytes of buffers that plain training does without.
  void end(int64_t staging);
  /// A call failed: its step, if it was profiled, is profiled anew.
  void forget();

  /// Of the window so far, which ends unless it is open.
  memory::BudgetPlans::Steps of_window(bool window_is_open);

 private:
  int64_t forwards_ = 0;
  int64_t samples_ = 0, base_ = 0, peak_ = 0;  // of the step that was profiled
  std::shared_ptr<memory::Profiler> profiler_;
  memory::BudgetPlans::Steps steps_;  // of the window
};

}  // namespace fleet
