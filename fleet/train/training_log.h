#pragma once

#include <chrono>
#include <cstdint>

#include "fleet/metrics/weighted_mean.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/run_options.h"

namespace fleet {

/// What a program says while it trains, and when it has trained enough (`--max_updates`).
///
/// The guide's lines for every `log_every`th update of an epoch, and one line per epoch with
/// samples per second, which counts all that the epoch took, and the most memory that the process
/// had. Rank 0 speaks; all ranks make the same calls.
///
///   TrainingLog log(run);
///   log.begin_epoch(0);
///   for (const auto& batch : data.epoch(0)) log.step(optimizer.minimize(batch, loss));
///   log.end_epoch();
class TrainingLog {
 public:
  /// `updates`: made before, in the run that this one goes on from.
  explicit TrainingLog(const RunOptions& options, int64_t updates = 0)
      : options_(options), updates_(updates) {}

  /// `batch`: the first, where the epoch began in another run.
  void begin_epoch(int64_t epoch, int64_t batch = 0);

  /// worker_index: 0, step9 cost = 1.500000, ...
  void step(const UpdateReport& report);

  /// [Epoch 0, batch 5] loss: 1.01921, acc1: 0.00000, acc5: 0.06250, and the line above. The means
  /// are this rank's of the batch; they are emptied for the next.
  void step(const UpdateReport& report, WeightedMean& acc1, WeightedMean& acc5);

  /// [train] epoch 0: loss 2.30512, 12000 samples in 34.2 s, 350.9 samples/s, memory 1.23 GiB
  void end_epoch();

  bool is_over() const { return options_.max_updates > 0 && updates_ >= options_.max_updates; }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_due() const { return batch_ % options_.log_every == 0; }

  RunOptions options_;
  int64_t epoch_ = 0;
  int64_t batch_ = 0;  // of the epoch
  int64_t updates_ = 0;
  WeightedMean loss_;  // of the epoch
  Clock::time_point begin_ = Clock::now();
};

}  // namespace fleet
