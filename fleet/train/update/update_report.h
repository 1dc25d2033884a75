// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "fleet/train/memory/memory_report.h"

namespace fleet {

/// What one call of `minimize` did.
struct UpdateReport {
  int64_t call = 0;        // calls of `minimize` so far
  int64_t update = 0;      // updates done so far
  bool updated = false;    // false: the window continues, or no rank had a sample
  bool skipped = false;    // loss or gradient not finite (amp): nothing changed but the scale
  bool in_window = false;  // one micro-batch of an accumulation window that continues: not updated
  int64_t micro_batches = 0;  // of this rank, so far in this window
  double loss =
      0;  // mean over all samples of all ranks; of this micro-batch alone within a window;
          // with local SGD of this rank, or, when `synced`, since the last average
  double weight = 0;  // what the loss was averaged over: samples, or what the closure said
  // This call on this rank alone, whatever the strategy: summed over calls and ranks, each sample
  // counts once. `loss` and `weight` above overlap within windows and between averages.
  double own_loss = 0;     // mean
  double own_weight = 0;   // what it was averaged over
  int64_t samples = 0;     // 0: not known (`minimize(closure)`; `forward()` without a number)
  double lr = 0;           // the rate that was used
  double loss_scale = 1;   // the one that was used
  bool synced = false;     // local SGD: parameters were averaged after this update
  bool stop = false;       // some rank was asked to stop (stop_request.h); the same on all ranks
  int64_t sync_every = 1;  // updates between two averages from here on; 1: gradients are shared
  std::optional<double> gradient_norm = {};  // before clipping; of every update
  double seconds = 0;                        // wall time of the call
  double total_seconds = 0;                  // of all calls so far
  double exposed_communication_s = 0;        // part of `seconds` spent waiting for other ranks
  MemoryReport memory = {};

  /// Adds the micro-batch that `loss` and `weight` are about to `own_loss` and `own_weight`.
  void count_own();
};

/// Prints the guide's step line on rank 0.
void log_step(const UpdateReport& report);

}  // namespace fleet
