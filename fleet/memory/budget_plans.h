#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "fleet/memory/memory_counter.h"
#include "fleet/memory/plan.h"
#include "fleet/memory/policies.h"
#include "fleet/memory/step_profile.h"

namespace fleet::memory {

/// Keeps the steps of a training within a budget. The first step runs with as little memory as it
/// can, the second one is measured as well, and from the third on a plan is followed; each size of
/// batch has its own. A program that grows or changes is measured again.
class BudgetPlans {
 public:
  /// `budget` in counted bytes; with the speed of a disk, plans may count on a file.
  BudgetPlans(int64_t budget, MemoryCounter& counter, OffloadFile::Speed disk = {})
      : budget_(budget), counter_(counter), disk_(disk) {}

  int64_t budget() const { return budget_; }

  struct Forward {
    std::shared_ptr<TapePolicy> policy;
    std::shared_ptr<Profiler> profiler;
  };
  /// What a forward over so many samples (0: nobody knows) is to be recorded with.
  Forward begin(int64_t samples);
  void end_forward(const TapeReport& tape);
  void end_backward();
  /// The step failed.
  void forget();

  /// Memory was short: true when the same step may fit another way, by a plan with more to spare,
  /// or cut otherwise while there is none.
  bool tighten();

  /// The plan in force for so many samples; null: none yet.
  std::shared_ptr<const Plan> plan(int64_t samples) const;

  /// The size of part that is quickest for a batch that fits in parts of `largest` samples: that,
  /// or a half of it, a quarter..., as long as each is quicker by its plan than the one before. One
  /// that nobody has run yet is to be run next.
  int64_t quickest_part(int64_t largest) const;

  /// The plans so far in words, once there is one for the size of part that ran last; else empty.
  std::string summary() const;

 private:
  struct Entry {
    int steps = 0;  // that ran without a plan
    int measured = 0;
    size_t lean = 0;  // how it runs without a plan
    double margin = 0.01;
    bool is_tightened = false;  // since it was measured
    int64_t saved_bytes = 0;    // of the forward that was measured
    std::shared_ptr<TiedOps> tied = std::make_shared<TiedOps>();
    std::shared_ptr<const StepProfile> profile;
    std::shared_ptr<const Plan> plan;

    bool is_hopeless() const;  // it will never have a plan
  };
  void make(Entry& entry);

  int64_t budget_;
  MemoryCounter& counter_;
  OffloadFile::Speed disk_;
  std::map<int64_t, Entry> entries_;
  int64_t samples_ = 0;  // of the step that runs
  Forward running_;
};

/// Bytes of a text like "12GiB", or of a share of this machine's memory like "60%" (of what the
/// process's control group allows, where that is less). 0 when it is neither.
int64_t budget_bytes(const std::string& text);

}  // namespace fleet::memory
