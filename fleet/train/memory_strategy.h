#pragma once

#include <memory>
#include <optional>
#include <string>

#include "fleet/memory/away_memory.h"
#include "fleet/memory/budget_allocator.h"
#include "fleet/memory/budget_plans.h"
#include "fleet/memory/tape.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/memory_report.h"

namespace fleet {

/// What `strategy.recompute` adds to a forward: a tape that records it and gives up what backward
/// can make again, and with enable_offload a file for what it keeps.
///
///   MemoryStrategy memory(strategy.recompute_configs);
///   MemoryStrategy::Forward forward(&memory);
///   const auto loss = closure();
///   forward.finish();   // then backward
class MemoryStrategy {
 public:
  /// Cuts at the checkpoints that are named there, or as plans for the budget say. A budget is in
  /// force from now on, for the tensors of the whole process.
  explicit MemoryStrategy(const RecomputeConfigs& configs);
  ~MemoryStrategy();
  MemoryStrategy(const MemoryStrategy&) = delete;
  MemoryStrategy& operator=(const MemoryStrategy&) = delete;

  /// Bytes of tensors that a budget counts now.
  int64_t counted() const;
  /// Memory that the budget has to know of, because it was not counted when it was made.
  void charge(int64_t bytes);

  /// Records this thread's ops until `finish`; null: does nothing.
  class Forward {
   public:
    /// `samples`: 0 when nobody knows.
    explicit Forward(MemoryStrategy* memory, int64_t samples = 0);
    /// Throws when the first forward did not name a checkpoint that was asked for.
    void finish();

   private:
    MemoryStrategy* memory_;
    std::shared_ptr<memory::TapePolicy> policy_;
    std::optional<memory::Offload> offload_;
    std::optional<memory::TapeScope> scope_;
  };
  void end_backward();

  /// Memory was short: true when the same parts may fit with another plan.
  bool plan_again();

  /// The size of part that is quickest within the budget, `largest` being one that fits.
  int64_t quickest_part(int64_t largest) const {
    return plans_ ? plans_->quickest_part(largest) : largest;
  }

  /// Of what happened since the last call; says it once, after the first update.
  MemoryReport report_of_call(bool updated);
  /// A call failed: what is in the file is of no use, and the next forward opens another.
  void forget();

 private:
  class NamedCheckpoints;
  void add(const memory::TapeReport& tape);
  void say_once();

  RecomputeConfigs configs_;
  std::shared_ptr<NamedCheckpoints> named_;  // null: plans say where
  std::unique_ptr<memory::BudgetPlans> plans_;
  std::unique_ptr<memory::BudgetAllocatorScope> counting_;  // with a budget
  int64_t charged_ = 0;
  std::shared_ptr<memory::OffloadFile> file_;
  memory::OffloadStatistics counted_;  // of `file_`, reported already
  MemoryReport report_;
  std::optional<memory::TapeReport> first_;
  bool said_ = false;
};

}  // namespace fleet
