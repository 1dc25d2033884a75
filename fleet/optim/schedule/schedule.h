// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fleet::optim {

/// The learning rate of every update: a pure function of the update's number, so that resuming
/// needs nothing but that number. The first update is number 0.
///
///   const auto rate = warmup(500, cosine({.lr = 0.4, .updates = 9500}));
///   log(rate.describe());
///   optimizer.set_lr(rate(optimizer.steps()));   // before each step
class Schedule {
 public:
  static constexpr int64_t kNeverSettles = INT64_MAX;

  /// A custom schedule. `rate` must always give the same for the same number. `text` is for
  /// logs; `updates`: see there.
  Schedule(std::string text, std::function<double(int64_t)> rate, int64_t updates = kNeverSettles);

  double operator()(int64_t update) const;

  /// From this update on the rate stays what it is: 0 for a constant, kNeverSettles if there is
  /// no such update.
  int64_t updates() const { return updates_; }

  /// "warm-up from 0 to 0.4 over 500 updates, then cosine from 0.4 to 0 over 9500 updates"
  const std::string& describe() const { return text_; }

 private:
  std::string text_;
  std::function<double(int64_t)> rate_;
  int64_t updates_;
};

// Below, x = min(update / updates, 1). Update 0 has `lr`; update number `updates` is the first that
// has `end_lr`, and all later ones have it too. Options that are not valid throw one Error that
// lists all of them.

Schedule constant(double lr);

/// From `lr` to `end_lr` in `updates`.
struct LinearOptions {
  double lr = 0;
  double end_lr = 0;
  int64_t updates = 0;
};
/// lr + (end_lr - lr) * x
Schedule linear(const LinearOptions& options);

/// From `lr` to `end_lr` in `updates`, by a power.
struct PolynomialOptions {
  double lr = 0;
  double end_lr = 0;
  double power = 2;
  int64_t updates = 0;
};
/// end_lr + (lr - end_lr) * (1 - x)^power
Schedule polynomial(const PolynomialOptions& options);

/// From `lr` to `end_lr` in `updates`.
struct CosineOptions {
  double lr = 0;
  double end_lr = 0;
  int64_t updates = 0;
};
/// end_lr + (lr - end_lr) * (1 + cos(pi * x)) / 2: half a period, no restarts (Loshchilov and
/// Hutter, arXiv 1608.03983)
Schedule cosine(const CosineOptions& options);

/// Rates, and the updates at which they change.
struct PiecewiseOptions {
  std::vector<int64_t> boundaries;
  std::vector<double> values;  // one more than boundaries
};
/// values[i], i = how many boundaries are at or below the update: boundary 100 means that update
/// 100 is the first with the next value.
Schedule piecewise(const PiecewiseOptions& options);

/// A rate and its decay.
struct ExponentialOptions {
  double lr = 0;
  double gamma = 1;
  int64_t every = 1;       // updates
  bool staircase = false;  // only whole multiples of `every` count
};
/// lr * gamma^(update / every). Never ends.
Schedule exponential(const ExponentialOptions& options);

/// A rate and the updates after which it falls.
struct InverseSqrtOptions {
  double lr = 0;
  int64_t offset = 1;  // updates that count as done already: the length of the warm-up before it
};
/// lr * sqrt(offset / (offset + update)). Never ends. Behind a warm-up of `offset` updates it is
/// the schedule of the Transformer (arXiv 1706.03762), whose peak is 1 / sqrt(width * offset).
Schedule inverse_sqrt(const InverseSqrtOptions& options);

/// How a rate rises before its schedule.
struct WarmupOptions {
  double start_lr = 0;
  /// true: `then` begins to count when the warm-up is over, so nothing of it is lost and there is
  /// no jump. false: `then` counts from update 0, as in recipes that give one length for the whole;
  /// the rate then jumps from near then(0) to then(updates).
  bool shift = true;
};
/// Update u < updates: start_lr + (then(0) - start_lr) * u / updates. From update number `updates`
/// on: then(u - updates), or then(u) if not shifted. With start_lr 0 the very first update has the
/// rate 0 and only fills the optimizer's state (Goyal et al., arXiv 1706.02677). 0 updates: `then`.
Schedule warmup(int64_t updates, const Schedule& then, const WarmupOptions& options = {});

/// lr * batch / base_batch: SGD, as long as the gradients' noise dominates (arXiv 1706.02677).
double linear_scaled(double lr, int64_t base_batch, int64_t batch);
/// lr * sqrt(batch / base_batch): Adam and LAMB (arXiv 1904.00962).
double sqrt_scaled(double lr, int64_t base_batch, int64_t batch);

}  // namespace fleet::optim
