// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "fleet/snapshot/snapshots.h"
#include "fleet/train/program/training_log.h"

namespace fleet {

/// The loop of a training program: `update` for every batch of `batches(epoch)`, which calls
/// `log.step`; at the end of each epoch the optimizer's `end_epoch` (with local SGD ranks become
/// one model there), the log's line, and `test`. Ends early when the log says that it is over.
/// Begins where the snapshot was from which the training resumes, and saves more of them as they
/// are due. Throws Stopped (stop_request.h) when a rank was asked to stop.
///
///   train_epochs(
///       config.epochs, optimizer, log, snapshots,
///       [&](int64_t epoch) { return loader.epoch(epoch); },
///       [&](const Batch& batch) { log.step(optimizer.minimize(batch, loss)); },
///       [&](int64_t epoch) { test_after(epoch); });
template <typename Batches, typename Update, typename Test>
void train_epochs(int64_t epochs, DistributedOptimizer& optimizer, TrainingLog& log,
                  Snapshots& snapshots, Batches&& batches, Update&& update, Test&& test) {
  int64_t first_batch = snapshots.batch();
  if (snapshots.epoch() >= epochs || log.is_over()) log.nothing_left(epochs);
  for (int64_t epoch = snapshots.epoch(); epoch < epochs && !log.is_over(); ++epoch) {
    log.begin_epoch(epoch, std::exchange(first_batch, 0));
    for (const auto& batch : batches(epoch)) {
      update(batch);
      snapshots.after_update(log.is_over() ? Snapshots::Next::kEnd : Snapshots::Next::kUpdate);
      if (log.is_over()) break;
    }
    log.end_epoch(optimizer.end_epoch());
    test(epoch);
    snapshots.after_epoch();
  }
  snapshots.finish();
}

}  // namespace fleet
