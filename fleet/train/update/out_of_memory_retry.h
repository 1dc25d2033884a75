// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <c10/util/Exception.h>

#include "fleet/train/micro_batch.h"
#include "fleet/train/update/accumulation_window.h"
#include "fleet/train/update/training_stack.h"

namespace fleet {

/// Runs the micro-batches of a call. Where memory is short (c10::OutOfMemoryError), the window is
/// dropped, buffers and generators are restored, and all of them run again: by another plan, or in
/// smaller micro-batches. An error where other ranks already have some of the gradients.
class OutOfMemoryRetry {
 public:
  using MicroBatches = std::vector<MicroBatch>;

  OutOfMemoryRetry(TrainingStack& stack, AccumulationWindow& window)
      : stack_(stack), window_(window) {}

  /// Calls `work` with the micro-batches of the batch until it succeeds.
  void run(const BatchShape& batch, const std::function<void(const MicroBatches&)>& work);
  /// The micro-batches that it begins with; an error where the batch cannot be split.
  int64_t count(const BatchShape& batch) const;

 private:
  using Ranges = AutoMicroBatch::Ranges;

  Ranges ranges_of(const BatchShape& batch) const;
  MicroBatches micro_batches_of(const BatchShape& batch, const Ranges& ranges) const;
  bool may_restart(const c10::OutOfMemoryError& error) const;
  bool recover(const BatchShape& batch, const Ranges& ranges, const c10::OutOfMemoryError& error);
  void succeeded(const BatchShape& batch, const Ranges& ranges);
  bool may_choose_size() const;

  TrainingStack& stack_;
  AccumulationWindow& window_;
};

}  // namespace fleet
