// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fleet/comm/communicator.h"
#include "fleet/core/parameter_arena.h"
#include "fleet/ops/fast_ops.h"
#include "fleet/ops/random_scope.h"
#include "fleet/optim/optimizer.h"
#include "fleet/optim/passes/gradient_merge.h"
#include "fleet/optim/schedule/schedule.h"
#include "fleet/parallel/data_parallel.h"
#include "fleet/parallel/local_sgd.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/memory/memory_strategy.h"
#include "fleet/train/memory/plain_memory.h"
#include "fleet/train/micro_batch.h"
#include "fleet/train/update/auto_micro_batch.h"
#include "fleet/train/update/loss_normalizer.h"
#include "fleet/train/update/mixed_precision.h"
#include "fleet/train/update/sample_offsets.h"
#include "fleet/train/update/subject.h"
#include "fleet/train/update/training_counters.h"
#include "fleet/train/update/update_hook.h"

namespace fleet {

/// What a strategy builds around one model and its optimizer: the parts of an update, without the
/// order in which they work, which is DistributedOptimizer's.
struct TrainingStack {
  /// Checks the strategy, prints what is in force, and gives all ranks rank 0's parameters and
  /// buffers.
  TrainingStack(std::unique_ptr<optim::Optimizer> own_optimizer,
                const DistributedStrategy& asked_strategy,
                std::shared_ptr<comm::Communicator> all_ranks);

  /// Whether the next update is this rank's own (local SGD).
  bool is_local() const { return local && local->is_local(); }
  bool shares_gradients() const { return comm->size() > 1 && !is_local(); }
  double loss_scale() const { return amp ? amp->scaler().scale() : 1; }
  int64_t updates() const { return optimizer->steps(); }
  /// Also those that were skipped.
  int64_t attempts() const { return local ? local->steps() : own_attempts; }
  /// An error where strategies wrap a forward: that of this loss was outside of their scope.
  void check_needs_no_scope() const;
  /// Batch norm over all ranks meets once per forward: an error where ranks have other numbers of
  /// micro-batches.
  void check_equal_micro_batches(int64_t own) const;
  /// With plan_only: throws HelpRequested once all ranks have their plans.
  void end_if_planned() const;
  /// Ranks that skipped an update, or had fewer batches, continue with the others' schedule.
  void apply_sync(const SyncReport& sync);

  /// Where the random ops of a micro-batch's forward begin.
  ops::RandomScope::Position random_position(const MicroBatch& next) const;

  /// Called after the hooks that are there; a name that is taken is an Error.
  void attach(std::shared_ptr<UpdateHook> hook);

  /// For snapshots; see DistributedOptimizer::counters.
  TrainingCounters counters() const;
  void set_counters(const TrainingCounters& counters);

  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<Subject> subject;
  DistributedStrategy strategy;  // resolved
  std::shared_ptr<comm::Communicator> comm;
  std::shared_ptr<comm::Communicator> norm_comm;  // for sync_batch_norm; null: off
  std::unique_ptr<ParameterArena> arena;
  std::unique_ptr<DataParallel> parallel;
  std::unique_ptr<MixedPrecision> amp;        // null: off
  std::unique_ptr<FastOps> fast_ops;          // null: off
  std::unique_ptr<MemoryStrategy> memory;     // null: off; then
  std::unique_ptr<PlainMemory> plain_memory;  // is there
  std::unique_ptr<AutoMicroBatch> micro_batch;
  std::unique_ptr<LocalSgd> local;  // null: off
  std::unique_ptr<LossNormalizer> normalizer;
  SampleOffsets sample_offsets;
  std::optional<optim::Schedule> schedule;
  optim::GradientMerge merge;
  std::vector<std::shared_ptr<UpdateHook>> hooks;
  int64_t random_seed = 0;     // of Fleet's random ops; the same on all ranks
  int64_t window_samples = 0;  // that random ops have seen in this window, where calls tell none
  int64_t calls = 0;
  int64_t own_attempts = 0;
  double total_seconds = 0;
  bool has_logged_fast_ops = false;  // what they replaced
  bool is_stopping = false;          // some rank was asked to stop

 private:
  void agree_on_seed();
  void build_parallel();
  void build_local_sgd();
};

}  // namespace fleet
