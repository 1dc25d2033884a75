// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fleet/core/error.h"
#include "fleet/memory/allocator/memory_counter.h"
#include "fleet/memory/plan/plan.h"
#include "fleet/memory/plan/profile/graph_use.h"
#include "fleet/memory/plan/profile/profiler.h"
#include "fleet/memory/plan/profile/replay_times.h"
#include "fleet/memory/tape/policies.h"

namespace fleet::memory {

struct BudgetPlansOptions {
  int64_t budget = 0;  // counted bytes; with fraction_of_plain, until that is known
  double fraction_of_plain =
      0;              // above 0: the budget becomes this fraction of what plain training takes
  int64_t limit = 0;  // of the process, for `Forward::is_unbounded`
  OffloadFile::Speed disk = {};  // if it is known, plans may offload
  int64_t staging = 0;           // counted bytes that the file takes while it is open
  bool logs_plans = true;        // a line for every plan
};

/// Keeps the steps of a training within a budget. The first two steps evict on demand, the second
/// one is measured as well, and from the third on a plan is followed; each size of micro-batch has
/// its own. The plan of a further size is estimated from a measured one, so that its first step is
/// planned already; its second step follows that plan and is measured. If a forward of the same ops
/// saves more, as with longer sequences, the measured step is scaled up. Where the first planned
/// step recomputes much longer or shorter than predicted, another plan is looked for with the times
/// of that step, once. A program that changes is measured again; one that never repeats, or that no
/// plan holds within the budget, evicts on demand in every step.
class BudgetPlans {
 public:
  BudgetPlans(const BudgetPlansOptions& options, MemoryCounter& counter)
      : options_(options),
        counter_(counter),
        budget_(options.budget),
        is_resolved_(options.fraction_of_plain == 0) {}

  int64_t budget() const { return budget_; }
  /// False while the budget is a fraction of what plain training takes, and that is not known.
  bool is_resolved() const { return is_resolved_; }

  /// Who runs a step again for which memory was short.
  enum class Restart {
    kHere,      // whoever uses this, after `tighten`
    kByCaller,  // the user's program, if it catches the exception, after `tighten`
    kNever,     // nobody: the exception ends the program
  };

  /// A step over so many samples (0: not known) comes next. Returns whether the offload file must
  /// be open during it, which the caller does before `begin`.
  bool prepare(int64_t samples);

  struct Forward {
    std::shared_ptr<TapePolicy> policy;
    std::shared_ptr<Profiler> profiler;
    std::shared_ptr<ReplayTimes> replays;        // of the first step by a plan
    std::shared_ptr<BackwardCounter> backwards;  // to be told of those through its graph
    bool is_unbounded = false;                   // measured beyond the budget, the last resort
  };
  /// How to record the forward.
  Forward begin(Restart restart = Restart::kHere);
  void end_forward(const TapeReport& tape);
  /// A backward is over, and the graph is kept: another may follow, and what lies between is no
  /// part of the step.
  void pause();
  /// An allocation of the step does not fit into the budget, and nothing is left to evict. True:
  /// the step goes on beyond it, once for a size that nobody runs again, so that what it takes is
  /// known. Throws a BudgetExceeded with the least sufficient budget where that is known to be
  /// more.
  bool exceed();
  /// The step that runs follows a plan, so far to the letter.
  bool follows_plan() const;
  /// Throws an Error with the least sufficient budget if no plan exists for a step that cannot be
  /// split.
  void end_backward();
  /// Forgets a step that failed.
  void forget();

  /// Memory was short: true if the same step may fit otherwise: by a plan with a larger margin, by
  /// eviction on demand instead of a plan, or, if it cannot be split any further or values may be
  /// offloaded, by a plan from a step that is measured beyond the budget.
  bool tighten(bool can_split);

  /// The plan in force for so many samples; null: none yet.
  std::shared_ptr<const Plan> plan(int64_t samples) const;
  /// The step that was measured for it; null: none yet.
  std::shared_ptr<const StepProfile> profile(int64_t samples) const;

  /// The size of micro-batch that is quickest for a batch that fits in micro-batches of `largest`
  /// samples: that, or a half of it, a quarter..., as long as each is quicker by its plan than the
  /// one before. A size that has not run yet is run next.
  int64_t fastest_micro_batch(int64_t largest) const;

  /// Of the steps since `begin_window`.
  struct Steps {
    int64_t samples = 0;         // of all; 0: not known
    int64_t largest = 0;         // micro-batch
    bool is_settled = false;     // each ran by its final plan, or will have none
    int64_t plain_peak = 0;      // of all samples in one micro-batch; 0: not known yet
    bool is_scaled_up = false;   // plain_peak, from a smaller micro-batch
    int64_t predicted_peak = 0;  // of the plans in force; 0: none
    std::string offload_note;    // why a file is not used; empty: it is, or was not asked for
    std::vector<int64_t> sizes;  // of their micro-batches, each once
  };
  Steps steps() const;
  void begin_window();

  /// The plans in force for these sizes, as text.
  std::string summary(const std::vector<int64_t>& sizes) const;
  /// What plain training takes for this size, and what plans would save of it.
  std::string plain_summary(int64_t samples) const;

 private:
  struct Entry {
    int steps = 0;  // that ran without a plan
    int measured = 0;
    double margin = 0.01;
    bool is_tightened = false;   // since it was measured
    bool is_checked = false;     // the times of its replays, by a step that followed a plan
    bool is_unbounded = false;   // the next step is measured beyond the budget
    bool is_followed = false;    // the last step ran by the plan that is in force
    bool was_unbounded = false;  // once
    bool can_split = false;      // its batch, into smaller micro-batches
    int64_t estimated_from = 0;  // the size of which its profile is scaled; 0: it was measured
    int64_t saved_bytes = 0;     // of the forward that the profile is of
    int64_t saved_now = 0;       // of the same ops, where that is more; 0: it is not
    int64_t plain_peak = 0;      // by the profile
    GraphUse graph;              // the most of any of its steps
    std::string why_again;       // a plan is to replace another
    std::string offload_note;
    std::shared_ptr<const StepProfile> profile;
    std::vector<MemoryCounter::TagUse> base_tags;
    std::shared_ptr<const Plan> plan;
    std::optional<Plan> least;  // where no plan holds the budget: that which takes the least

    bool is_infeasible() const;  // it will never have a plan
  };
  bool uses_file(const Entry& entry) const;
  bool is_estimated(int64_t samples) const;
  void estimate(Entry& entry);
  void check_times(Entry& entry, const ReplayTimes& replays);
  void resolve(const Entry& entry);
  void make(Entry& entry);
  static bool include(Entry& entry, const GraphUse& use);
  std::optional<Plan> plan_for(const Entry& entry, int64_t limit, bool with_file) const;
  int64_t limit_of(const Entry& entry) const;
  std::optional<Plan> better_plan(Entry& entry, int64_t limit) const;
  Plan least_plan(const Entry& entry) const;
  UsageError too_small(const Entry& entry) const;

  BudgetPlansOptions options_;
  MemoryCounter& counter_;
  int64_t budget_;
  bool is_resolved_;
  std::map<int64_t, Entry> entries_;
  int64_t samples_ = 0;           // of the step that runs
  int64_t samples_of_steps_ = 0;  // since `begin_window`
  std::set<int64_t> sizes_;       // likewise
  Forward running_;
  Restart restart_ = Restart::kHere;  // of it
  bool is_measured_ = false;          // it has a profiler for a plan, not only in case it exceeds
};

}  // namespace fleet::memory
