// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace fleet::optim {

struct GradientMergeOptions {
  int64_t k_steps = 1;           // micro-batches that make one update
  bool avg = true;               // off: the micro-batches' mean gradients are added up
  int64_t micro_batch_size = 0;  // split a batch into this size; 0: into k_steps
  bool drop_last = false;        // at the end of an epoch, forget a window that is not full
};

/// Counts the micro-batches of one update; gradients themselves add up in the arena, in float. A
/// window's gradient is the sum over its micro-batches and over all ranks, divided once by the
/// weight of all of them: k micro-batches give the gradient of one big batch, however unequal they
/// are.
///
///   GradientMerge merge({.k_steps = 4});
///   for (const auto& range : merge.split(batch.size())) { ...; merge.add(); }
///   if (merge.is_full()) { update(); merge.close(); }
class GradientMerge {
 public:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };

  explicit GradientMerge(const GradientMergeOptions& options = {});
  const GradientMergeOptions& options() const { return options_; }

  /// How one big batch is split; micro-batches are as equal as they can be, and none is empty.
  std::vector<Range> split(int64_t samples) const;
  /// Micro-batches of a full window, when every call brings one.
  int64_t calls_per_update() const { return options_.micro_batch_size > 0 ? 1 : options_.k_steps; }

  void add() { ++micro_batches_; }
  bool is_open() const { return micro_batches_ > 0; }
  /// Will the next micro-batch fill a window of calls?
  bool next_is_last() const { return micro_batches_ + 1 >= calls_per_update(); }
  void close() { micro_batches_ = 0; }

  int64_t micro_batches() const { return micro_batches_; }

 private:
  GradientMergeOptions options_;
  int64_t micro_batches_ = 0;
};

}  // namespace fleet::optim
