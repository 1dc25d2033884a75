// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fleet/core/options/options.h"
#include "fleet/precision/grad_scaler.h"

namespace fleet {

/// The numbers of a DistributedOptimizer that a snapshot keeps beside the tensors; each rank has
/// its own.
struct TrainingCounters {
  int64_t attempts = 0;     ///< updates, those among them that changed nothing
  int64_t updates = 0;      ///< where the schedule is
  int64_t calls = 0;        ///< of `minimize`
  int64_t random_seed = 0;  ///< of Fleet's random ops; 0: that of the program
  double total_seconds = 0;
  double lr = 0;
  double loss_normalizer = 0;         ///< 0: not agreed on yet
  int64_t loss_terms = 0;             ///< that a loss has; 0: not agreed on yet
  int64_t batch_samples = -1;         ///< of this rank when ranks agreed on places; -1: never
  int64_t first_sample = -1;          ///< its place in the global batch; -1: to be agreed on
  int64_t micro_batch_limit = 0;      ///< samples, since more did not fit; 0: none
  int64_t micro_batch_preferred = 0;  ///< likewise, since more was slower
  GradScalerState scaler = {};
};
const FieldList& fields_of(const TrainingCounters*);

}  // namespace fleet
