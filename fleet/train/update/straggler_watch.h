// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fleet {

/// Reports stragglers: ranks whose own computing for an update takes more than `factor` times
/// the median of all ranks, in `kInARow` consecutive updates. Each is reported once, again when it
/// has become much slower, and when it is as fast as the others again.
///
/// All ranks see the same times, so that one of them logs for all. The median of an even
/// number is the lower one: of two ranks, the faster.
///
///   StragglerWatch watch(2, {"rank 0 (a)", "rank 1 (b)"});
///   for (const auto& line : watch.observe(seconds)) log::warn("straggler", line);
class StragglerWatch {
 public:
  static constexpr int64_t kInARow = 5;
  /// Shorter delays are noise of the system, and cost little.
  static constexpr double kMinDelay_s = 0.01;

  /// `factor` 0: nothing is reported.
  StragglerWatch(double factor, std::vector<std::string> ranks);

  /// `seconds` by rank for one update, means over `updates` of them; ranks that are not known have
  /// 0. Returns the lines to log.
  std::vector<std::string> observe(const std::vector<double>& seconds, int64_t updates = 1);

 private:
  struct Rank {
    std::string name;
    bool is_named = false;
    double logged_ratio = 0;
    int64_t updates = 0;     // in a row that contradict the last report
    double seconds_sum = 0;  // in these
    double median_sum = 0;
  };

  std::string observe(Rank& rank, double seconds, double median, int64_t updates) const;

  double factor_;
  std::vector<Rank> ranks_;
};

}  // namespace fleet
