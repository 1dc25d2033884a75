// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "fleet/train/update/batch_arithmetic.h"
#include "fleet/train/update/straggler_watch.h"
#include "fleet/train/update/training_stack.h"
#include "fleet/train/update/update_report.h"

namespace fleet {

/// What updates print beside their step line: each kind once, or when there is something new.
class UpdateLog {
 public:
  explicit UpdateLog(const TrainingStack& stack);

  /// The batch arithmetic, with the first update: batches come from the program.
  void batch(const UpdateReport& report, BatchForm form);
  /// Gradients of other backwards, kept out of the window.
  void kept_apart();
  /// Seconds of compute by rank, means over `updates` of them.
  void stragglers(const std::vector<double>& seconds, int64_t updates);

 private:
  const TrainingStack& stack_;
  StragglerWatch stragglers_;
  bool has_said_batch_ = false;
  bool has_said_apart_ = false;
};

}  // namespace fleet
