// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace fleet {

/// The numbers of `step_line`.
struct StepFigures {
  int64_t worker_index = 0;
  int64_t step = 0;  ///< counted from 0
  double cost = 0;
  double step_time_s = 0;
  double total_time_s = 0;  ///< of steps 0..step
};

/// The guide's line of one step. "step per second" is the mean since step 0; the guide subtracts
/// nine warm-up steps from the count but not from the time, which starts below zero.
///
///   log::plain(step_line({.worker_index = 0, .step = 9, .cost = 1.5, .step_time_s = 0.25,
///                         .total_time_s = 2.5}));
///   // worker_index: 0, step9 cost = 1.500000, total time cost = 2.500000, step per second:
///   // 4.000000, speed: 4.000000          (one line)
std::string step_line(const StepFigures& figures);

/// The numbers of `batch_line`.
struct BatchFigures {
  int64_t epoch = 0;
  int64_t batch = 0;
  double loss = 0;
  double acc1 = 0;  ///< 0..1
  double acc5 = 0;
};

/// The guide's line of one batch:
///
///   [Epoch 0, batch 5] loss: 1.01921, acc1: 0.00000, acc5: 0.06250
std::string batch_line(const BatchFigures& figures);

}  // namespace fleet
