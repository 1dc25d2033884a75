// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/core/parameter_arena.h"
#include "fleet/optim/optimizer.h"
#include "fleet/optim/schedule/schedule.h"
#include "fleet/optim/torch_optimizer.h"
#include "fleet/parallel/data_parallel.h"
#include "fleet/parallel/local_sgd.h"
#include "fleet/precision/autocast.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/loss.h"
#include "fleet/train/micro_batch.h"
#include "fleet/train/update/training_counters.h"
#include "fleet/train/update/update_hook.h"
#include "fleet/train/update/update_report.h"

namespace fleet {

namespace optim {
struct GradientHealth;
}
class ForwardScopes;

/// Trains one model as a strategy says; the one place where strategies meet. Made by
/// `distributed_optimizer`.
///
/// All ranks call `minimize` the same number of times. A rank that has run out of samples passes an
/// empty batch: it takes part with weight 0. With local SGD it may also call `end_epoch`.
///
/// With local SGD ranks hold different parameters until `end_epoch` or `sync` makes them one model:
/// call one of them on all ranks before the model is evaluated or saved. Each rank has its own
/// overflows and loss scale.
///
/// After an update `grad()` holds what the ranks' backwards summed up: with amp still multiplied by
/// the loss scale, and before clipping; both happen while the optimizer reads it.
class DistributedOptimizer {
 public:
  DistributedOptimizer(std::unique_ptr<optim::Optimizer> optimizer,
                       const DistributedStrategy& strategy,
                       std::shared_ptr<comm::Communicator> comm);
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&&) noexcept;

  /// Forward, backward, reduce, update. A mean counts the same on every rank. With gradient merge,
  /// k_steps calls make one update, and only the last of them communicates.
  UpdateReport minimize(const std::function<Loss()>& loss);

  /// The same for a batch that the closure gets: a mean counts as many samples as the batch has, so
  /// that a short last batch, or unequal batches of the ranks, come out exactly as one big batch.
  /// Every call is an update: gradient merge splits the batch, and so does a lack of memory
  /// (c10::OutOfMemoryError): then the batch runs again in micro-batches of half the size.
  template <Batchlike B, typename F>
  requires std::invocable<F&, const B&> UpdateReport minimize(const B& batch, F&& loss) {
    const auto samples = static_cast<int64_t>(batch.size());
    BatchShape shape{.samples = samples, .can_slice = Sliceable<B>};
    if constexpr (WeightedBatch<B>) {
      if (samples > 0) shape.loss_weights = batch.loss_weights();
    }
    return minimize_samples(shape, [&](int64_t begin, int64_t end) -> Loss {
      if constexpr (Sliceable<B>) {
        if (end - begin < samples) return loss(batch.slice(begin, end));
      }
      return loss(batch);
    });
  }

  /// The eager form, as in torch: `backward` as often as wanted, `step` when wanted. Equal to
  /// `minimize` with the same micro-batches.
  ///
  ///   {
  ///     const auto scope = optimizer.forward();   // amp, recompute, sync_batch_norm
  ///     loss = loss_of(net->forward(batch.data), batch.target);
  ///   }
  ///   optimizer.backward(loss);
  ///   if (++n % 4 == 0) fleet::log_step(optimizer.step());
  ///
  /// The forward of the loss must lie in a scope of `forward()` where a strategy works on it. It is
  /// not run again where memory is short: the first that does not fit a budget exceeds it.
  class ForwardScope;
  /// `samples`: of the micro-batch, for plans of recompute; 0: not known.
  [[nodiscard]] ForwardScope forward(int64_t samples = 0);

  /// How `backward` treats its micro-batch.
  struct BackwardOptions {
    /// The last of the window: gradients are sent while it runs. By default it is the k_steps-th of
    /// gradient_merge; otherwise `step` sends them.
    bool is_last = false;
  };
  /// Adds the gradients of one micro-batch to the window. A mean counts 1, whatever its samples;
  /// give a WeightedLoss where micro-batches are unequal.
  UpdateReport backward(const Loss& loss, const BackwardOptions& options);
  UpdateReport backward(const Loss& loss) { return backward(loss, {}); }
  /// Reduces the gradients of the window, and updates. All ranks call it; one that had no
  /// micro-batch since the last takes part with zeros.
  UpdateReport step();
  /// Forgets the window. torch's `zero_grad()` of the model does the same.
  void zero_grad();

  /// The end of an epoch in the middle of a window of `minimize(closure)`: updates with the
  /// micro-batches that are there, correctly weighted, or drops them
  /// (gradient_merge_configs.drop_last). Empty when no window is open. With local SGD, waits for
  /// the ranks that have more batches, and leaves all with the average. All ranks call it.
  std::optional<UpdateReport> end_epoch();

  /// With local SGD, averages now, exactly; all ranks call it. Nothing to do otherwise.
  void sync();

  /// The precision in which `minimize` runs its closures, for an evaluation; nothing without amp.
  ///
  ///   const auto autocast = optimizer.autocast();
  ///   accuracy.add(net->forward(batch.data), batch.target);
  [[nodiscard]] precision::AutocastScope autocast() const;

  double lr() const;
  /// Ends a schedule.
  void set_lr(double lr);
  /// From now on update n uses `schedule(n)`, counted from 0; a skipped update does not count.
  void set_schedule(optim::Schedule schedule);
  int64_t updates() const;
  int64_t skipped_updates() const;
  /// Updates so far, also those that were skipped or had nothing to learn from: the same on all
  /// ranks; with local SGD, where they have unequal numbers of batches, only after `end_epoch`.
  int64_t attempts() const;
  /// Whether calls of `minimize(closure)` wait for their update.
  bool is_in_window() const;
  /// Some rank was asked to stop (SIGTERM), and all ranks have learned it with the same update;
  /// with local SGD with the same average. `Snapshots` acts on it.
  bool is_stopping() const;

  /// Calls the hook after every update, and keeps its state in snapshots. Attach hooks in the same
  /// order on all ranks, before `Snapshots` are made.
  void attach(std::shared_ptr<UpdateHook> hook);
  /// Those of the strategy, then those that were attached.
  const std::vector<std::shared_ptr<UpdateHook>>& hooks() const;
  /// The first of this type; null: none.
  template <std::derived_from<UpdateHook> H>
  H* hook() const {
    for (const auto& hook : hooks()) {
      if (auto* const found = dynamic_cast<H*>(hook.get())) return found;
    }
    return nullptr;
  }

  /// For snapshots, between two windows. `set_counters` comes after tensors were written.
  TrainingCounters counters() const;
  void set_counters(const TrainingCounters& counters);

  /// In force after resolving and checking.
  const DistributedStrategy& strategy() const;
  const ParameterArena& arena() const;
  const optim::Optimizer& optimizer() const;
  optim::Optimizer& optimizer();
  const std::shared_ptr<comm::Communicator>& comm() const;
  /// Null when it is off, or with one rank.
  LocalSgd* local_sgd();

 private:
  using SliceLoss = std::function<Loss(int64_t begin, int64_t end)>;
  struct State;

  UpdateReport minimize_samples(const BatchShape& batch, const SliceLoss& loss);
  /// Where the account of what a call takes begins; `backward` includes the user's own forward.
  enum class MemoryFrom { kThisCall, kForward };
  UpdateReport report_of_call(const std::function<void(UpdateReport&)>& work,
                              MemoryFrom from = MemoryFrom::kThisCall);
  void update(const BatchShape& batch, const SliceLoss& closure, UpdateReport& report);
  void complete(UpdateReport& report);
  void complete_window(UpdateReport& report);
  Loss compute_loss(const MicroBatch& micro_batch, const SliceLoss& closure);
  void compute_gradients(const MicroBatch& micro_batch, const Loss& loss, UpdateReport& report);
  ReducedMetadata reduce(UpdateReport& report);
  std::optional<optim::GradientHealth> check(const ReducedMetadata& reduced, UpdateReport& report);
  void step(const ReducedMetadata& reduced, const optim::GradientHealth& health,
            UpdateReport& report);
  void average(UpdateReport& report);
  void apply_sync(const SyncReport& sync);

  std::unique_ptr<State> state_;
};

/// Lives around the forward of a loss that goes to `backward`, which ends it.
class DistributedOptimizer::ForwardScope {
 public:
  ~ForwardScope();
  ForwardScope(ForwardScope&&) noexcept;
  ForwardScope& operator=(ForwardScope&&) = delete;

 private:
  friend class DistributedOptimizer;
  explicit ForwardScope(std::shared_ptr<ForwardScopes> scopes);
  std::shared_ptr<ForwardScopes> scopes_;
};

/// Turns an optimizer into a distributed one, prints the strategy in force, and gives all ranks the
/// parameters and buffers of rank 0. The model must not be moved, converted or loaded afterwards.
///
///   fleet::optim::Momentum momentum(net, {.lr = 0.1});
///   auto optimizer = fleet::distributed_optimizer(std::move(momentum), strategy);
///   for (const auto& batch : data) {
///     optimizer.minimize(batch, [&](const auto& b) { return loss_of(net(b.data), b.target); });
///   }
DistributedOptimizer distributed_optimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                           const DistributedStrategy& strategy = {});

template <std::derived_from<optim::Optimizer> O>
DistributedOptimizer distributed_optimizer(O optimizer, const DistributedStrategy& strategy = {}) {
  return distributed_optimizer(std::unique_ptr<optim::Optimizer>(new O(std::move(optimizer))),
                               strategy);
}

/// The same over any optimizer of LibTorch, or a subclass of the user's: moved in, by reference (it
/// must outlive the result), or in a shared pointer.
///
///   torch::optim::RMSprop rmsprop(net->parameters(), 0.01);
///   torch::optim::StepLR scheduler(rmsprop, 30, 0.1);
///   auto optimizer = fleet::distributed_optimizer(net, rmsprop, strategy);
template <optim::IsTorchOptimizer O>
DistributedOptimizer distributed_optimizer(const ModelHandle& model, O&& optimizer,
                                           const DistributedStrategy& strategy = {}) {
  return distributed_optimizer(optim::TorchOptimizer(model, std::forward<O>(optimizer)), strategy);
}

template <optim::IsTorchOptimizer O>
DistributedOptimizer distributed_optimizer(O&& /*optimizer*/,
                                           const DistributedStrategy& strategy = {}) {
  static_assert(!optim::IsTorchOptimizer<O>,
                "a torch optimizer does not know its parameters' names, so pass the model too: "
                "fleet::distributed_optimizer(model, optimizer, strategy)");
  return distributed_optimizer(std::unique_ptr<optim::Optimizer>(), strategy);  // not reached
}

}  // namespace fleet
