// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fleet/core/options/options.h"

namespace fleet {

/// Where `init_k_steps` stands. With x = lr_0 / lr * loss / loss_0:
enum class IntervalFormula {
  kAdacomm,  // ceil(init_k_steps * sqrt(x)): the paper's and that of Paddle's pages
  kPaddle,   // ceil(sqrt(init_k_steps * x)): that of Paddle's code; 16 becomes 4
};

/// Bounds and formula of an adaptive interval.
struct AdaptiveIntervalOptions {
  int init_k_steps = 1;
  int max_k_steps = 16;
  IntervalFormula formula = IntervalFormula::kAdacomm;
  double loss_smoothing = 0.9;  // what an update leaves of the smoothed loss before it
};

/// How many updates lie between two averages of local SGD, from loss and learning rate: many while
/// the loss is high, fewer as it falls, more again when the rate falls. Wang and Joshi, arXiv
/// 1810.08313, for a learning rate that varies.
///
/// loss_0 is the first loss; loss is smoothed, and the same on all ranks, so that the interval is
/// too. lr_0 is the highest rate so far, not the first: after a warm-up the first one would hold
/// the interval at 1. Where the loss is not positive and finite, the interval stays as it is.
///
///   AdaptiveInterval interval({.init_k_steps = 8});
///   interval.observe({.loss = mean_loss, .updates = interval.k_steps(), .lr = 0.1});
///   const int next = interval.choose();
class AdaptiveInterval {
 public:
  /// All that a snapshot needs to continue.
  struct State {
    int k_steps = 1;
    double first_loss = 0;  // 0: none yet
    double loss = 0;        // smoothed
    double peak_lr = 0;
    double lr = 0;  // of the last observation

    bool operator==(const State&) const = default;
  };
  /// What one interval brought, the same on all ranks.
  struct Observation {
    double loss = 0;  // mean over `updates` updates of all ranks
    int64_t updates = 1;
    double lr = 0;
  };

  explicit AdaptiveInterval(const AdaptiveIntervalOptions& options);

  void observe(const Observation& seen);
  /// After an average: the interval from here on, 1 to `max_k_steps`.
  int choose();
  int k_steps() const { return state_.k_steps; }

  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  AdaptiveIntervalOptions options_;
  State state_;
};

const FieldList& fields_of(const AdaptiveInterval::State*);

}  // namespace fleet
