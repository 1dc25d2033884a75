// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "fleet/metrics/weighted_mean.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/program/run_options.h"

namespace fleet {

/// What a program says while it trains, and when it has trained enough (`--max_updates`).
///
/// The guide's lines for every `log_every`th call of `minimize` in an epoch, and one line per epoch
/// with the mean loss over all samples of all ranks, each counted once under every strategy; with
/// samples per second, which counts all that the epoch took; and with the most memory that the
/// process had. Rank 0 prints; all ranks make the same calls. Ranks meet in `end_epoch`, and in
/// `step` only where they share gradients: never between two averages of local SGD.
///
///   TrainingLog log(run);
///   log.begin_epoch(0);
///   for (const auto& batch : data.epoch(0)) log.step(optimizer.minimize(batch, loss));
///   log.end_epoch(optimizer.end_epoch());
class TrainingLog {
 public:
  /// `updates`: made before, in the run that this one resumes from.
  explicit TrainingLog(const RunOptions& options, int64_t updates = 0)
      : options_(options), updates_(updates) {}

  /// `batch`: the first, where the epoch began in another run.
  void begin_epoch(int64_t epoch, int64_t batch = 0);

  /// worker_index: 0, step9 cost = 1.500000, ...
  void step(const UpdateReport& report);

  /// [Epoch 0, batch 5] loss: 1.01921, acc1: 0.00000, acc5: 0.06250, and the line above. The means
  /// are this rank's of the batch; they are emptied for the next. The line is about all ranks where
  /// they share gradients, and about rank 0 with local SGD and within an accumulation window.
  void step(const UpdateReport& report, WeightedMean& acc1, WeightedMean& acc5);

  /// [train] epoch 0: loss 2.30512, 12000 samples in 34.2 s, 350.9 samples/s, memory 1.23 GiB
  /// `rest`: what the optimizer's end_epoch returned; without an update there, micro-batches of an
  /// open window were dropped, and do not count. Sums over all ranks, so it comes after that call:
  /// with local SGD ranks may have unequal numbers of batches before it.
  void end_epoch(const std::optional<UpdateReport>& rest);
  /// The same where an accumulation window continues in the next epoch: it counts there.
  void end_epoch();

  /// [train] nothing is left to train: 1500 updates were made before, and --epochs 1 asks for no
  /// more
  void nothing_left(int64_t epochs) const;

  bool is_over() const { return options_.max_updates > 0 && updates_ >= options_.max_updates; }

 private:
  using Clock = std::chrono::steady_clock;

  // What this rank has seen.
  struct Tally {
    double loss_sum = 0;
    double weight = 0;
    double samples = 0;  // 0: not known
    double calls = 0;
  };

  bool is_due() const { return batch_ % options_.log_every == 0; }
  void close_window(bool counts);

  RunOptions options_;
  int64_t epoch_ = 0;
  int64_t batch_ = 0;  // of the epoch
  int64_t updates_ = 0;
  Tally epoch_tally_;
  Tally window_;                // of calls that wait for their update, which may be skipped
  bool has_explained_ = false;  // whose numbers local SGD's lines show
  Clock::time_point begin_ = Clock::now();
};

}  // namespace fleet
