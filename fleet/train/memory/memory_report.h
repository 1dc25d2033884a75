// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fleet {

/// What one call of `minimize` took of memory, and what recompute and offload did for that. Bytes
/// of tensors, each rounded up to 64, that were made since the optimizer.
struct MemoryReport {
  int64_t plain_peak = 0;  // what plain training takes for this batch in one micro-batch: measured
                           // without recompute, else predicted from a measured step; 0: not known
                           // yet
  int64_t budget = 0;      // in force; 0: none
  int64_t predicted_peak = 0;  // of the plans that were followed; 0: none
  int64_t measured_peak = 0;   // of this call and those before it in its window; in the eager form
                               // from `forward()` on, or without it from the call before. Also of
                               // the micro-batches before a budget in percent of plain was known
  int64_t now = 0;
  bool is_resident = false;  // tensors are not counted: the process's resident memory, its peak
                             // since it began

  int64_t segments = 0;          // that backward recomputes, over all micro-batches
  int64_t evicted = 0;           // values evicted
  int64_t evicted_bytes = 0;     // of them
  int64_t not_recomputable = 0;  // values inside such segments that no replay can recompute
  int64_t not_recomputable_bytes = 0;
  int64_t offloaded_bytes = 0;  // written to the file
  int64_t fetched_bytes = 0;    // read from it; less when they were needed before they had left
  double offload_stall_s = 0;   // waited for the disk

  /// Adds what was done before, in the same step: segments, values and bytes.
  void add_counts(const MemoryReport& before) {
    segments += before.segments;
    evicted += before.evicted;
    evicted_bytes += before.evicted_bytes;
    not_recomputable += before.not_recomputable;
    not_recomputable_bytes += before.not_recomputable_bytes;
    offloaded_bytes += before.offloaded_bytes;
    fetched_bytes += before.fetched_bytes;
    offload_stall_s += before.offload_stall_s;
  }
};

}  // namespace fleet
