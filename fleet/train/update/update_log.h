// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fleet/train/update/batch_arithmetic.h"
#include "fleet/train/update/straggler_watch.h"
#include "fleet/train/update/training_stack.h"

namespace fleet {

/// What updates print beside their step line: each kind once, or when there is something new.
class UpdateLog {
 public:
  explicit UpdateLog(const TrainingStack& stack);

  /// The batch arithmetic, with the first update: batches come from the program.
  void batch(const WindowSamples& own, BatchForm form);
  /// What ranks know of each other's samples in this update.
  void reduced(const ReducedMetadata& reduced);
  /// Gradients of other backwards, which were discarded.
  void discarded_gradients();
  /// Seconds of compute by rank, means over `updates` of them.
  void stragglers(const std::vector<double>& seconds, int64_t updates);

 private:
  const TrainingStack& stack_;
  StragglerWatch stragglers_;
  std::optional<int64_t> global_samples_;
  bool is_local_ = false;
  bool has_logged_batch_ = false;
  bool has_logged_discarded_ = false;
};

}  // namespace fleet
