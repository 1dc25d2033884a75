// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace fleet {

/// What is known of the batch of a call before its first forward.
struct BatchShape {
  int64_t samples = 0;                    // 0: empty, or not known (`is_micro_batch`)
  bool can_slice = false;                 // it can be split
  bool is_micro_batch = false;            // one of a window that several calls fill
  std::vector<double> loss_weights = {};  // empty: not known
};

/// One forward and backward of an update.
struct MicroBatch {
  int64_t begin = 0;  // samples of the batch; both 0 where they are not known
  int64_t end = 0;
  int64_t batch_samples = 0;   // of the whole batch on this rank; 0: not known
  double weight = 1;           // of a mean; a WeightedLoss has its own
  bool is_last = true;         // of the accumulation window
  int64_t window_size = 1;     // micro-batches that the window will have
  int64_t requested_size = 0;  // that gradient merge makes of the batch; 0: as many as come

  int64_t samples() const { return end - begin; }
};

}  // namespace fleet
