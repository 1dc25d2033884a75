// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/adaptive_interval.h"

#include <algorithm>
#include <cmath>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

bool is_usable(double loss) { return std::isfinite(loss) && loss > 0; }

}  // namespace

AdaptiveInterval::AdaptiveInterval(const AdaptiveIntervalOptions& options) : options_(options) {
  if (options.init_k_steps < 1 || options.max_k_steps < options.init_k_steps) {
    throw UsageError("local_sgd",
                     format("the interval cannot begin at {} and stay between 1 and {}",
                            options.init_k_steps, options.max_k_steps),
                     "give 1 <= init_k_steps <= max_k_steps");
  }
  if (!(options.loss_smoothing >= 0 && options.loss_smoothing < 1)) {
    throw UsageError("local_sgd",
                     format("loss_smoothing {} is outside [0, 1)", options.loss_smoothing));
  }
  state_.k_steps = options.init_k_steps;
}

void AdaptiveInterval::observe(const Observation& seen) {
  state_.lr = seen.lr;
  state_.peak_lr = std::max(state_.peak_lr, seen.lr);
  if (!is_usable(seen.loss)) return;
  if (state_.first_loss == 0) {
    state_.first_loss = seen.loss;
    state_.loss = seen.loss;
    return;
  }
  const double keep = std::pow(options_.loss_smoothing, static_cast<double>(seen.updates));
  state_.loss = keep * state_.loss + (1 - keep) * seen.loss;
}

int AdaptiveInterval::choose() {
  if (state_.first_loss == 0) return state_.k_steps;
  // Without a rate nothing moves, and there is nothing to average.
  if (state_.lr == 0) return state_.k_steps = options_.max_k_steps;
  const double ratio = state_.peak_lr / state_.lr * state_.loss / state_.first_loss;
  const double steps = options_.formula == IntervalFormula::kPaddle
                           ? std::sqrt(ratio * options_.init_k_steps)
                           : std::sqrt(ratio) * options_.init_k_steps;
  const double most = options_.max_k_steps;
  return state_.k_steps = static_cast<int>(std::clamp(std::ceil(steps), 1.0, most));
}

const FieldList& fields_of(const AdaptiveInterval::State*) {
  using S = AdaptiveInterval::State;
  static const FieldList list{
      .area = "local_sgd",
      .fields = {
          field<&S::k_steps>("k_steps", "updates between two averages").at_least(1),
          field<&S::first_loss>("first_loss", "the first loss; 0: none yet"),
          field<&S::loss>("loss", "smoothed"),
          field<&S::peak_lr>("peak_lr", "the highest rate so far"),
          field<&S::lr>("lr", "the last rate"),
      }};
  return list;
}

}  // namespace fleet
