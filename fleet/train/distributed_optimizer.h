#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/core/parameter_arena.h"
#include "fleet/optim/optimizer.h"
#include "fleet/parallel/data_parallel.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/loss.h"

namespace fleet {

/// What one call of `minimize` did.
struct UpdateReport {
  int64_t update = 0;  // updates done so far
  double loss = 0;     // mean over all samples of all ranks
  double weight =
      0;  // what the loss was averaged over: samples, or what the closure said, on all ranks
  double lr = 0;                       // the rate that was used
  double seconds = 0;                  // wall time of the call
  double total_seconds = 0;            // of all calls so far
  double exposed_communication_s = 0;  // part of `seconds` spent waiting for other ranks
};

/// A batch that `minimize` can weigh and split: it knows how many samples it has.
template <typename B>
concept Batchlike = requires(const B& batch) {
  { batch.size() } -> std::convertible_to<int64_t>;
};

/// Trains one model as a strategy says; the one place where strategies meet. Made by
/// `distributed_optimizer`.
///
/// All ranks call `minimize` the same number of times. A rank that has run out of samples passes an
/// empty batch: it takes part without a say.
class DistributedOptimizer {
 public:
  DistributedOptimizer(std::unique_ptr<optim::Optimizer> optimizer,
                       const DistributedStrategy& strategy,
                       std::shared_ptr<comm::Communicator> comm);
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&&) noexcept;

  /// Forward, backward, reduce, update. A mean counts the same on every rank.
  UpdateReport minimize(const std::function<Loss()>& loss);

  /// The same for a batch that the closure gets: a mean counts as many samples as the batch has, so
  /// that a short last batch, or unequal shares of the ranks, come out exactly as one big batch.
  template <Batchlike B, typename F>
  requires std::invocable<F&, const B&> UpdateReport minimize(const B& batch, F&& loss) {
    const auto samples = static_cast<int64_t>(batch.size());
    return minimize_samples(samples, [&]() -> Loss { return loss(batch); });
  }

  double lr() const;
  void set_lr(double lr);
  int64_t updates() const;

  /// In force after resolving and checking.
  const DistributedStrategy& strategy() const;
  const ParameterArena& arena() const;
  const optim::Optimizer& optimizer() const;

 private:
  /// One forward and backward of an update.
  struct Part {
    double weight = 1;  // of a mean; a WeightedLoss says its own
    std::function<Loss()> loss;
  };
  UpdateReport minimize_samples(int64_t samples, const std::function<Loss()>& loss);
  UpdateReport update(const std::vector<Part>& parts);
  struct PartLoss;
  PartLoss forward(const Part& part);

  struct State;
  std::unique_ptr<State> state_;
};

/// Turns an optimizer into a distributed one, prints the strategy in force, and gives all ranks the
/// parameters and buffers of rank 0. The model must not be moved, converted or loaded afterwards.
///
///   auto optimizer = fleet::distributed_optimizer(fleet::optim::Momentum(net, {.lr = 0.1}),
///   strategy); for (const auto& batch : data)
///     optimizer.minimize(batch, [&](const auto& b) { return loss_of(net(b.data), b.target); });
DistributedOptimizer distributed_optimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                           const DistributedStrategy& strategy = {});

template <std::derived_from<optim::Optimizer> O>
DistributedOptimizer distributed_optimizer(O optimizer, const DistributedStrategy& strategy = {}) {
  return distributed_optimizer(std::unique_ptr<optim::Optimizer>(new O(std::move(optimizer))),
                               strategy);
}

/// Prints the guide's step line on rank 0.
void log_step(const UpdateReport& report);

}  // namespace fleet
