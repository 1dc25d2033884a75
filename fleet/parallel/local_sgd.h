// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/core/model_handle.h"
#include "fleet/core/options/options.h"
#include "fleet/core/parameter_arena.h"
#include "fleet/parallel/adaptive_interval.h"
#include "fleet/parallel/buffer_average.h"
#include "fleet/parallel/local_sgd_wire.h"
#include "fleet/parallel/outer_optimizer.h"

namespace fleet {

/// What an average does to the state of the ranks' optimizers, their momentum above all.
enum class StateAtSync { kLocal, kAverage, kReset };

/// When local SGD averages, and what it does with an average.
struct LocalSgdOptions {
  int k_steps = 1;     // updates between two averages; `adaptive` has its own
  int begin_step = 1;  // updates before this one are synchronous, counted from 1
  std::optional<AdaptiveIntervalOptions> adaptive = {};
  OuterOptimizerOptions outer = {};
  StateAtSync optimizer_state = StateAtSync::kLocal;
  bool delayed = false;  // average while the next window runs
};

/// What a rank did in one update.
struct LocalStep {
  double weight = 1;  // samples that it learned from; 0: it skipped, or had none
  double loss = 0;    // their mean
  double lr = 0;
  int64_t updates = 0;         // that its optimizer has done so far
  double compute_seconds = 0;  // what it took, without waiting for others; 0: not known
};

/// What an average brought; the same on all ranks.
struct SyncReport {
  bool synced = false;  // false: it was not time, and the rest says nothing
  double loss = 0;      // mean over all samples of all ranks in the window
  double weight = 0;
  int64_t updates = 0;     // the most that any rank's optimizer has done
  bool all_ended = false;  // every rank is at the end of its epoch
  double seconds = 0;      // spent here, waiting included
  /// Some rank was asked to stop, and all are at the same place: in an epoch, or at its end.
  bool stop = false;
  int64_t steps = 0;                         // of the window, on the rank that made most
  std::vector<double> compute_seconds = {};  // by rank, for one update; 0: not known
};

/// Averages parameters every few steps instead of gradients every step.
///
/// Saves (k - 1) / k of the traffic; ranks drift in between, so start it after warm-up
/// (`begin_step`) when the early loss is unstable. A window is what lies between two averages. The
/// weight of a rank is that of its samples in the window (McMahan et al., arXiv
/// 1602.05629), so that a rank without samples has weight 0; buffers are averaged alike
/// (BufferAverage). Every update counts towards the window, also one that was skipped, so that all
/// ranks come to the average together. Afterwards all hold the same parameters, bit for bit.
///
/// `delayed`: the average of window n is taken while window n + 1 runs, and at the end of that one
/// each rank adds (average - what it had sent). Ranks then differ by one window's progress at most;
/// `sync` and `end_epoch` make them equal. Buffers, which training does not read, wait for those.
///
/// Costs two further copies of the parameters; `delayed` and an outer momentum one more each.
///
///   LocalSgd local(arena, net, comm, {.k_steps = 8});
///   optimizer.step();
///   local.after_step();   // averages on every 8th call
class LocalSgd {
 public:
  /// What a rank has done since the last average.
  struct Window {
    int64_t steps = 0;
    double weight = 0;
    double loss_sum = 0;
    double lr = 0;               // of the last step
    int64_t updates = 0;         // of the optimizer, so far
    double compute_seconds = 0;  // of all steps together; not kept in a snapshot
  };
  /// All that a snapshot has to keep beside the parameters. Tensors are the object's own.
  struct State {
    int64_t step = 0;
    Window window = {};
    AdaptiveInterval::State interval = {};
    std::vector<torch::Tensor> anchor = {};
    std::vector<torch::Tensor> velocity = {};
    std::vector<torch::Tensor> buffers = {};
  };

  /// All ranks must hold the same parameters and buffers. `optimizer_state`: tensors that are
  /// averaged or reset with them, if the options say so.
  LocalSgd(ParameterArena& arena, const ModelHandle& model,
           std::shared_ptr<comm::Communicator> comm, const LocalSgdOptions& options,
           std::vector<torch::Tensor> optimizer_state = {});
  ~LocalSgd();
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  /// Whether the next update is this rank's own; false: gradients are still to be summed.
  bool is_local() const { return step_ + 1 >= options_.begin_step; }
  /// Before an update of which `is_local` says so; needed only where parameters may have been
  /// written by others than the optimizer, such as by loading a file.
  void before_step();
  SyncReport after_step(const LocalStep& step = {});

  /// Ends the window here: all ranks hold the average, exactly, also when `delayed`. All ranks must
  /// call it. Where no rank has made an update since the last average nothing changes, and before
  /// `begin_step` nothing is sent.
  SyncReport sync();

  /// The same at the end of an epoch, where a rank may have had fewer batches than others: it takes
  /// part in their averages, with weight 0, until all of them have come here.
  SyncReport end_epoch();

  /// Updates between two averages, in force now.
  int k_steps() const { return interval_ ? interval_->k_steps() : options_.k_steps; }
  /// Updates so far; after an average the same on all ranks, whatever they had to do.
  int64_t steps() const { return step_; }
  /// Updates of this rank that no average has seen.
  int64_t unsynced_steps() const { return window_.steps + sent_steps_; }

  /// Whether all ranks have just averaged, each in the middle of its epoch: here a restarted rank
  /// can be admitted.
  bool is_admission_point() const { return is_in_step_ && window_.steps == 0 && !pending_; }

  /// Whether an average is behind the next updates; `sync` waits for it.
  bool is_sending() const { return pending_.has_value(); }

  /// Not while a delayed average is under way: after `sync`.
  State state() const;
  void set_state(const State& state);

 private:
  enum class SyncPoint { kStep, kSync, kEpochEnd };
  enum class ApplyMode { kExact, kDelayed };

  void close_window();
  void send(SyncPoint point);
  SyncReport receive(ApplyMode mode);
  SyncReport exchange(SyncPoint point);
  void apply_average(ApplyMode mode);
  void sync_optimizer_state(double weight);
  void choose_interval(const LocalSgdRow& window);

  ParameterArena& arena_;
  std::shared_ptr<comm::Communicator> comm_;
  LocalSgdOptions options_;
  std::vector<torch::Tensor> optimizer_state_;
  BufferAverage buffers_;
  OuterOptimizer outer_;
  LocalSgdWire wire_;
  std::optional<AdaptiveInterval> interval_;

  int64_t step_ = 0;
  Window window_;
  // One tensor per group of the arena.
  std::vector<torch::Tensor> anchor_;  // what all ranks had in common when the window began
  std::vector<torch::Tensor> change_;  // since then; summed over the ranks
  std::vector<torch::Tensor> sent_;    // the parameters that `change_` was made of, when delayed

  std::vector<torch::Tensor> sent_state_;
  std::optional<comm::Work> pending_;
  int64_t sent_steps_ = 0;     // of a window that is under way
  bool is_in_step_ = false;    // all ranks came to the last average from `after_step`
  bool is_corrected_ = false;  // by a delayed average: near the anchor, but not there
};

const FieldList& fields_of(const LocalSgd::Window*);
/// The numbers of it; its tensors are kept apart.
const FieldList& fields_of(const LocalSgd::State*);

}  // namespace fleet
