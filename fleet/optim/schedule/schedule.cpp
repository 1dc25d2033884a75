// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/schedule/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/optim/option_checks.h"

namespace fleet::optim {
namespace {

// What is wrong with one schedule's options; says all of it at once.
class Problems {
 public:
  void rate(std::string_view name, double value) {
    if (!std::isfinite(value) || value < 0) {
      found_.push_back(format("{} is {}, not a finite number of at least 0", name, value));
    }
  }
  void positive(std::string_view name, double value) {
    if (!std::isfinite(value) || value <= 0) {
      found_.push_back(format("{} is {}, not a finite number above 0", name, value));
    }
  }
  void at_least(int64_t low, std::string_view name, int64_t value) {
    if (value < low) found_.push_back(format("{} is {}, below {}", name, value, low));
  }
  void add(std::string text) { found_.push_back(std::move(text)); }

  void throw_if_any(std::string_view what) const {
    if (found_.empty()) return;
    throw UsageError::all("schedule", format("{} cannot be made of these options:", what), found_);
  }

 private:
  std::vector<std::string> found_;
};

double fraction(int64_t update, int64_t updates) {
  return update >= updates ? 1.0 : static_cast<double>(update) / static_cast<double>(updates);
}

// a at 0 and b at 1, both exactly; b + (a - b) * t would miss `a` by rounding.
double between(double a, double b, double t) { return a * (1 - t) + b * t; }

// From lr to end_lr over a number of updates: `rate(options, x)`, where x goes from 0 to 1.
template <typename Options, typename Rate>
Schedule over_updates(std::string_view kind, const std::string& text, const Options& options,
                      Rate rate) {
  Problems problems;
  problems.rate("lr", options.lr);
  problems.rate("end_lr", options.end_lr);
  if constexpr (requires { options.power; }) problems.positive("power", options.power);
  problems.at_least(1, "updates", options.updates);
  problems.throw_if_any(format("a {} schedule", kind));
  return Schedule(
      format("{} from {} to {} over {}", text, options.lr, options.end_lr,
             plural(options.updates, "update")),
      [=](int64_t update) { return rate(options, fraction(update, options.updates)); },
      options.updates);
}

double scaled(std::string_view rule, double lr, int64_t base_batch, int64_t batch, double power) {
  Problems problems;
  problems.rate("lr", lr);
  problems.at_least(1, "base_batch", base_batch);
  problems.at_least(1, "batch", batch);
  problems.throw_if_any(rule);
  return lr * std::pow(static_cast<double>(batch) / static_cast<double>(base_batch), power);
}

}  // namespace

Schedule::Schedule(std::string text, std::function<double(int64_t)> rate, int64_t updates)
    : text_(std::move(text)), rate_(std::move(rate)), updates_(updates) {
  Problems problems;
  if (!rate_) problems.add("rate is empty");
  problems.at_least(0, "updates", updates);
  problems.throw_if_any("a schedule");
}

double Schedule::operator()(int64_t update) const {
  if (update < 0) {
    throw Error("schedule", format("there is no update {}", update), "the first update is 0");
  }
  return rate_(update);
}

Schedule constant(double lr) {
  Problems problems;
  problems.rate("lr", lr);
  problems.throw_if_any("a constant schedule");
  return Schedule(
      format("constant {}", lr), [lr](int64_t) { return lr; }, 0);
}

Schedule linear(const LinearOptions& options) {
  return over_updates("linear", "linear", options,
                      [](const LinearOptions& o, double x) { return between(o.lr, o.end_lr, x); });
}

Schedule polynomial(const PolynomialOptions& options) {
  return over_updates("polynomial", format("polynomial of power {}", options.power), options,
                      [](const PolynomialOptions& o, double x) {
                        return between(o.end_lr, o.lr, std::pow(1 - x, o.power));
                      });
}

Schedule cosine(const CosineOptions& options) {
  return over_updates("cosine", "cosine", options, [](const CosineOptions& o, double x) {
    return between(o.end_lr, o.lr, (1 + std::cos(std::numbers::pi * x)) / 2);
  });
}

Schedule piecewise(const PiecewiseOptions& options) {
  Problems problems;
  const auto& boundaries = options.boundaries;
  if (options.values.size() != boundaries.size() + 1) {
    problems.add(format("{} values for {} boundaries, not {}", options.values.size(),
                        boundaries.size(), boundaries.size() + 1));
  }
  for (size_t i = 0; i < options.values.size(); ++i) {
    problems.rate(format("values[{}]", i), options.values[i]);
  }
  for (size_t i = 0; i < boundaries.size(); ++i) {
    if (i == 0) {
      problems.at_least(1, "boundaries[0]", boundaries[0]);
    } else if (boundaries[i] <= boundaries[i - 1]) {
      problems.add(format("boundaries do not rise: {} after {}", boundaries[i], boundaries[i - 1]));
    }
  }
  problems.throw_if_any("a piecewise schedule");
  std::string text = format("{}", options.values[0]);
  for (size_t i = 0; i < boundaries.size(); ++i) {
    text += format(", from update {} {}", boundaries[i], options.values[i + 1]);
  }
  return Schedule(
      "piecewise " + text,
      [o = options](int64_t update) {
        const auto passed = std::upper_bound(o.boundaries.begin(), o.boundaries.end(), update);
        return o.values[static_cast<size_t>(passed - o.boundaries.begin())];
      },
      boundaries.empty() ? 0 : boundaries.back());
}

Schedule exponential(const ExponentialOptions& options) {
  Problems problems;
  problems.rate("lr", options.lr);
  problems.positive("gamma", options.gamma);
  problems.at_least(1, "every", options.every);
  problems.throw_if_any("an exponential schedule");
  return Schedule(
      format("exponential from {}, times {} {} {}", options.lr, options.gamma,
             options.staircase ? "at every" : "over every", plural(options.every, "update")),
      [o = options](int64_t update) {
        const int64_t counted = o.staircase ? update - update % o.every : update;
        const double exponent = static_cast<double>(counted) / static_cast<double>(o.every);
        return o.lr * std::pow(o.gamma, exponent);
      });
}

Schedule inverse_sqrt(const InverseSqrtOptions& options) {
  Problems problems;
  problems.rate("lr", options.lr);
  problems.at_least(1, "offset", options.offset);
  problems.throw_if_any("an inverse square root");
  return Schedule(format("inverse square root from {}, half of it after {} updates", options.lr,
                         3 * options.offset),
                  [o = options](int64_t update) {
                    const auto offset = static_cast<double>(o.offset);
                    return o.lr * std::sqrt(offset / (offset + static_cast<double>(update)));
                  });
}

Schedule warmup(int64_t updates, const Schedule& then, const WarmupOptions& options) {
  Problems problems;
  problems.at_least(0, "updates", updates);
  problems.rate("start_lr", options.start_lr);
  // A constant may be warmed up for any time; its 0 updates are no length.
  if (!options.shift && then.updates() > 0 && updates > then.updates()) {
    problems.add(format("a warm-up of {} leaves nothing of a schedule of {}",
                        plural(updates, "update"), then.updates()));
  }
  problems.throw_if_any("a warm-up");
  if (updates == 0) return then;
  const double top = then(0);
  const int64_t begin = options.shift ? updates : 0;  // of `then`
  const int64_t settled = then.updates() > Schedule::kNeverSettles - begin
                              ? Schedule::kNeverSettles
                              : std::max(updates, begin + then.updates());
  return Schedule(
      format("warm-up from {} to {} over {}, then {}{}", options.start_lr, top,
             plural(updates, "update"), then.describe(),
             options.shift ? "" : ", counted from update 0"),
      [=, start = options.start_lr](int64_t update) {
        return update < updates ? between(start, top, fraction(update, updates))
                                : then(update - begin);
      },
      settled);
}

double linear_scaled(double lr, int64_t base_batch, int64_t batch) {
  return scaled("a linearly scaled rate", lr, base_batch, batch, 1);
}

double sqrt_scaled(double lr, int64_t base_batch, int64_t batch) {
  return scaled("a rate scaled with the square root", lr, base_batch, batch, 0.5);
}

}  // namespace fleet::optim
