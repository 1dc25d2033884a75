// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "fleet/memory/plan/budget_plans.h"
#include "fleet/memory/tape/tape_report.h"
#include "fleet/train/memory/memory_report.h"
#include "fleet/train/strategies/recompute.h"

namespace fleet {

/// The lines [memory], [recompute] and [offload] of a training, each printed once: with a budget
/// after the first window whose plans are settled, since what the steps before them did is not what
/// training does. With `plan_only` there are none.
///
///   MemoryLog log(strategy.recompute_configs);
///   log.after_forward(tape_report);
///   log.after_micro_batch(peak, *plans);
///   log.after_update(steps, report, plans.get());
class MemoryLog {
 public:
  explicit MemoryLog(const RecomputeConfigs& configs)
      : offloads_(configs.enable_offload), is_silent_(configs.plan_only) {}

  void after_forward(const memory::TapeReport& tape) { tape_ = tape; }
  /// A value of this size was kept because it is too small to be offloaded.
  void kept_small_value(int64_t bytes);
  /// A peak since the budget is known.
  void limited(int64_t peak) { limited_.bytes = std::max(limited_.bytes, peak); }
  /// Before `plans` learn that its backward has ended.
  void after_micro_batch(int64_t peak, const memory::BudgetPlans& plans);
  /// `plans`: null: checkpoints are named, and no budget is in force.
  void after_update(const memory::BudgetPlans::Steps& steps, const MemoryReport& report,
                    const memory::BudgetPlans* plans);
  /// The next micro-batch is the first of its window.
  void begin_window() { planned_ = limited_ = {}; }

 private:
  void log_memory(const memory::BudgetPlans::Steps& steps, const MemoryReport& report,
                  const memory::BudgetPlans* plans) const;
  void log_recompute() const;
  void log_offload(const memory::BudgetPlans::Steps& steps, const MemoryReport& report) const;

  struct PartPeak {  // of some micro-batches of the window
    int64_t bytes = 0;
    bool is_all = true;  // they are all of it
  };
  PartPeak planned_;                        // that followed a plan
  PartPeak limited_;                        // since the budget is known, and what comes after them
  std::optional<memory::TapeReport> tape_;  // of the last forward
  int64_t largest_small_ = 0;
  bool offloads_;
  bool is_silent_;
  bool has_logged_memory_ = false;
  bool has_logged_recompute_ = false;
};

}  // namespace fleet
