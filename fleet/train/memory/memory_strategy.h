// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fleet/core/torch/interception.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/allocator/last_resort.h"
#include "fleet/memory/offload/offloaded_storage.h"
#include "fleet/memory/plan/budget_plans.h"
#include "fleet/memory/tape/tape.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/memory/memory_log.h"
#include "fleet/train/memory/memory_report.h"

namespace fleet {

class NamedCheckpoints;
class PlainStep;

/// What `strategy.recompute` adds to a forward: a tape that records it and evicts what backward can
/// recompute, and with enable_offload a file for what it keeps. Tensors of the whole process are
/// counted from its construction on; a budget is in force only while an Enforced lives.
///
///   MemoryStrategy memory(strategy.recompute_configs);
///   const MemoryStrategy::Enforced budget(&memory);
///   MemoryStrategy::Forward forward(&memory);
///   const auto loss = closure();
///   forward.finish();   // then backward
class MemoryStrategy {
 public:
  /// Cuts at the checkpoints that are named there, or as plans for the budget say. A budget in
  /// percent is of what the process may have, shared with the other ranks on this host.
  explicit MemoryStrategy(const RecomputeConfigs& configs, int ranks_on_host = 1);
  ~MemoryStrategy();
  MemoryStrategy(const MemoryStrategy&) = delete;
  MemoryStrategy& operator=(const MemoryStrategy&) = delete;

  /// The budget is in force while it lives, and a call's peak is measured. One inside another adds
  /// nothing; null: does nothing.
  class Enforced {
   public:
    explicit Enforced(MemoryStrategy* memory);
    ~Enforced();
    Enforced(const Enforced&) = delete;
    Enforced& operator=(const Enforced&) = delete;

   private:
    MemoryStrategy* memory_;
  };

  /// Bytes of tensors that are counted now.
  int64_t counted() const;
  /// Memory that is to be counted for this tag, though the counted allocator did not make it.
  void charge(int64_t bytes, const char* tag);

  /// Records this thread's ops until `finish`; null: does nothing.
  class Forward {
   public:
    using Restart = memory::BudgetPlans::Restart;
    /// `samples`: 0: not known.
    explicit Forward(MemoryStrategy* memory, int64_t samples = 0, Restart restart = Restart::kHere);
    /// Throws when the first forward did not name a checkpoint that was asked for.
    void finish();
    /// Before `finish`.
    memory::Tape& tape() { return scope_->tape(); }

   private:
    MemoryStrategy* memory_;
    std::shared_ptr<memory::TapePolicy> policy_;
    std::optional<memory::Offload> offload_;
    std::shared_ptr<memory::BackwardCounter> backwards_;
    std::optional<compat::BackwardWatch> watch_;
    std::optional<memory::LastResortScope> last_resort_;
    std::optional<memory::TapeScope> scope_;
  };
  /// A backward is over that keeps the graph: another may follow.
  void pause() {
    if (plans_) plans_->pause();
  }
  /// After the last backward. Throws when the budget is too small for a micro-batch that cannot be
  /// split.
  void end_backward();
  /// For a LastResortScope around backwards.
  bool exceed();

  /// Memory was short: true when the same micro-batches may fit with another plan.
  bool replan(bool can_split);

  /// The size of micro-batch that is quickest within the budget, `largest` being one that fits.
  int64_t fastest_micro_batch(int64_t largest);

  /// Of what happened since the last call; what plain training takes is for the window so far. Logs
  /// once what was recomputed, offloaded and allocated.
  MemoryReport report_of_call(bool updated, bool window_is_open);
  /// Of a budget; null: without one.
  const memory::BudgetPlans* plans() const { return plans_.get(); }
  /// With plan_only, once the plans are settled: what the program is to print and end with.
  const std::optional<std::string>& plan_text() const { return plan_text_; }
  /// Resets the window's peaks.
  void drop_window() { window_peak_ = 0, log_.begin_window(); }
  /// A call failed: the file's content is dropped, and the next forward opens another.
  void forget();

 private:
  void plan_for_budget(int ranks_on_host);
  void open_file();
  void close_file();
  void apply_budget();
  void add(const memory::TapeReport& tape);
  void add_file_statistics();
  memory::BudgetPlans::Steps steps_of_window(bool window_is_open);
  /// The peak since the last call of it, which counts for the call and for its micro-batch.
  void take_peak();

  RecomputeConfigs configs_;
  std::unique_ptr<memory::BudgetAllocatorScope> counting_;  // null: another allocator is in its way
  std::shared_ptr<NamedCheckpoints> named_;                 // null: plans say where
  std::unique_ptr<PlainStep> plain_;                        // with named checkpoints
  std::unique_ptr<memory::BudgetPlans> plans_;
  std::optional<memory::BudgetScope> enforced_;
  int enforced_depth_ = 0;
  int64_t pending_peak_ = 0;   // of scopes since the last report, but for the one that lives
  int64_t window_peak_ = 0;    // of the calls before this one
  int64_t step_peak_ = 0;      // of the micro-batch that runs
  bool is_reported_ = false;   // what happened in this scope
  int64_t limit_ = 0;          // of a step that is measured beyond the budget
  bool is_unbounded_ = false;  // such a step runs
  std::optional<std::string> plan_text_;
  std::vector<std::pair<int64_t, const char*>> charged_;
  int64_t staging_ = 0;  // 0: as OffloadFile would
  std::shared_ptr<memory::OffloadFile> file_;
  memory::OffloadStatistics counted_;  // of `file_`, reported already
  int64_t preferred_ = 0;              // size of micro-batch; 0: not chosen
  MemoryReport report_;
  MemoryLog log_;
};

}  // namespace fleet
