#pragma once

#include <cstdint>
#include <vector>

#include "fleet/memory/offload_simulation.h"
#include "fleet/memory/plan.h"
#include "fleet/memory/policies.h"
#include "fleet/memory/step_profile.h"

namespace fleet::memory {

/// What a plan would do to a measured step, worked out by the rules by which the tape itself goes.
class PlanSimulation {
 public:
  explicit PlanSimulation(const StepProfile& profile, OffloadFile::Speed disk = {});

  struct Prediction {
    int64_t peak = 0;
    double seconds = 0;        // of the step
    int64_t sent_out = 0;      // bytes
    double stall_seconds = 0;  // of `seconds`, waiting for the disk
    // Bytes before and in each op's forward, then in each op's backward, the last op first.
    std::vector<int64_t> forward, backward;
  };
  Prediction predict(const Plan& plan) const;

  /// A stretch of ops [begin, end) by itself; see ChainEdge.
  struct Stretch {
    int64_t held = 0;
    int64_t need = 0;
    double seconds = 0;
    int64_t may_leave = 0;       // of what is held
    double leaving_seconds = 0;  // that this would take
  };
  Stretch stretch(int begin, int end, bool is_dropped, const std::vector<char>& rebuilt) const;

  /// The user's program holds so much of what the forward made when this op begins.
  int64_t alive_before(int op) const { return alive_[static_cast<size_t>(op)]; }
  /// Saved by ops before this one, each block once.
  int64_t saved_before(int op) const { return saved_[static_cast<size_t>(op)]; }
  /// No cut comes before this op: it would part a value from an op that changes it in place, and
  /// neither could be recomputed; or the op is inside of `fleet::recompute`.
  bool is_tied(int op) const {
    return tied_.contains(op) || profile_.ops[static_cast<size_t>(op)].is_inside_recompute;
  }

 private:
  enum class Fate : char { kNone, kHeld, kRegion, kAlone };
  struct Fates;  // of the blocks of a stretch
  struct Alone;  // a value that is rebuilt by itself
  template <typename F>
  static void add_alone(const std::vector<Alone>& alone, int begin, F&& add);
  void follow(int begin, int end, bool is_dropped, const std::vector<char>& rebuilt,
              Fates& fates) const;
  void add_to_replay(int block, int begin, const Fates& fates, std::vector<int64_t>& replay) const;
  bool collect(int block, int before, int begin, const std::vector<char>& rebuilt,
               const Fates& fates, std::vector<int>& ops) const;
  bool collect_op(int op, int begin, const std::vector<char>& rebuilt, const Fates& fates,
                  std::vector<int>& ops) const;

  const StepProfile& profile_;
  OffloadSimulation offload_;
  std::vector<int64_t> alive_, saved_;
  TiedOps tied_;
  std::vector<int> last_use_;  // by block: the last op that reads or saves it
};

}  // namespace fleet::memory
