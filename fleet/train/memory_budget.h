// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <torch/types.h>

#include "fleet/train/memory/memory_report.h"

namespace fleet {

namespace memory {
struct Plan;
struct StepProfile;
}  // namespace memory

/// What a MemoryBudget allows.
struct MemoryBudgetOptions {
  std::string budget;    // "8GiB", "60%" of what the process may have, or "50% of plain"
  bool offload = false;  // values may wait in a file
};

/// Keeps the steps of a user's own training loop within a memory budget. It needs neither the
/// model nor the optimizer, and moves no parameter.
///
/// Counts the tensors of this process that are made while it lives, and what a forward reads of
/// those that were there before. The first steps evict on demand, the second one is measured, and
/// from the third on a plan is followed (docs/strategies/planner.md). Not thread-safe.
///
///   MemoryBudget budget({.budget = "8GiB"});
///   const auto loss = budget.step([&] { return net->loss(batch); });   // forward and backward
///   optimizer.step();
class MemoryBudget {
 public:
  explicit MemoryBudget(const MemoryBudgetOptions& options);
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  /// Of one step.
  struct StepOptions {
    int64_t samples = 0;  // batches of another size get plans of their own; 0: one for all
    /// Instead of `loss.backward()`.
    std::function<void(const torch::Tensor&)> backward = {};
    /// Memory was short and `loss` is about to be called again: drops what the caller holds of the
    /// call before.
    std::function<void()> before_retry = {};
  };
  /// Forward and backward; returns the loss, without its graph. Where memory is short, gradients,
  /// the default generator and all tensors that the forward wrote to are restored, and it runs
  /// again by another plan; gradients are those of one call. Throws where the budget is too small.
  torch::Tensor step(const std::function<torch::Tensor()>& loss, const StepOptions& options);
  torch::Tensor step(const std::function<torch::Tensor()>& loss) { return step(loss, {}); }

  /// For loops that call backward themselves: record the forward while it lives, then call
  /// backward, with retain_graph as often as wanted: the step ends with the backward that does not
  /// keep the graph, or makes one of its own (create_graph), or with the next forward. The budget
  /// is in force while it lives, and during these backwards; a forward that gets none costs
  /// nothing. A backward that runs before `finish` is within the budget too, but such a step is
  /// never planned. Where memory is short, the exception goes to the caller, whose next try evicts
  /// more.
  class Forward {
   public:
    ~Forward();  // without finish(): the forward failed
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;
    void finish();

   private:
    friend class MemoryBudget;
    struct State;
    explicit Forward(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };
  [[nodiscard]] std::unique_ptr<Forward> forward(int64_t samples = 0);

  /// Of the last step that ended.
  MemoryReport report() const;
  /// How often its forward ran.
  int64_t attempts() const;

  /// The plan that steps of so many samples follow, and the step it was made from; null: none yet.
  std::shared_ptr<const memory::Plan> plan(int64_t samples = 0) const;
  std::shared_ptr<const memory::StepProfile> profile(int64_t samples = 0) const;

 private:
  class OutsideMemory;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fleet
