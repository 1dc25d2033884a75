// SPDX-License-Identifier: Apache-2.0
#include "fleet/precision/low_precision_speed.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include <ATen/Parallel.h>

#include "fleet/core/error.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/format.h"
#include "fleet/core/torch/cast_rules.h"
#include "fleet/core/torch/cpu_features.h"
#include "fleet/core/torch/interception.h"

namespace fleet::precision {
namespace {

using Clock = std::chrono::steady_clock;

// The best of a few: noise only ever adds.
double seconds_of_product(int64_t size, torch::ScalarType dtype) {
  constexpr int kRepetitions = 4;  // the first pays for what LibTorch sets up
  constexpr double kEnough = 0.015;
  const auto matrix = torch::full({size, size}, 0.5, dtype);
  double best = std::numeric_limits<double>::infinity();
  const auto begin = Clock::now();
  for (int i = 0; i < kRepetitions && (i < 2 || seconds_since(begin) < kEnough); ++i) {
    const auto start = Clock::now();
    (void)torch::mm(matrix, matrix);
    best = std::min(best, seconds_since(start));
  }
  return best;
}

// On one core: several wait for each other, which on a busy machine is all that is measured.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

double measure(torch::ScalarType dtype) {
  const OneThread one_thread;
  const compat::NoInterceptScope no_intercept;
  const compat::NoAutocastScope no_autocast;
  const torch::NoGradGuard no_grad;
  const auto ratio = [&](int64_t size) {
    return seconds_of_product(size, dtype) / seconds_of_product(size, torch::kFloat);
  };
  // A CPU without the instructions shows it at a size that costs it little; the others have too
  // much overhead there for a fair number.
  constexpr double kPlainlySlow = 4;
  const double small = ratio(128);
  return small > kPlainlySlow ? small : ratio(512);
}

std::string_view short_name(torch::ScalarType dtype) {
  return dtype == torch::kBFloat16 ? "bf16" : "fp16";
}

}  // namespace

double low_precision_slowdown(torch::ScalarType dtype) {
  if (dtype == torch::kBFloat16) {
    static const double slowdown = measure(torch::kBFloat16);
    return slowdown;
  }
  if (dtype == torch::kHalf) {
    static const double slowdown = measure(torch::kHalf);
    return slowdown;
  }
  throw UsageError("amp", format("{} is no low precision", c10::toString(dtype)),
                   "take torch::kBFloat16 or torch::kHalf");
}

std::optional<std::string> low_precision_warning(torch::ScalarType dtype) {
  return detail::slowdown_sentence(dtype, low_precision_slowdown(dtype),
                                   compat::missing_instructions(dtype));
}

std::optional<std::string> detail::slowdown_sentence(torch::ScalarType dtype, double slowdown,
                                                     const std::string& missing) {
  constexpr double kNoise = 1.2;
  if (slowdown < kNoise) return std::nullopt;
  const auto times = slowdown < 10 ? format("{:.1f}", slowdown) : format("{:.0f}", slowdown);
  const auto why = missing.empty() ? "" : format(" (no {})", missing);
  return format(
      "{} runs {}x slower than fp32 on this CPU{}: matrix products take longer, only memory is "
      "saved; switch amp off here unless memory is what is short",
      short_name(dtype), times, why);
}

}  // namespace fleet::precision
