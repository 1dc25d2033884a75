// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fleet {

/// Names ranks that hold the others up: whose own computing for an update takes more than `factor`
/// times the median of all ranks, in `kInARow` updates one after the other. It does so once, again
/// when it has become much worse, and when the rank is as fast as the others again.
///
/// All ranks see the same times, so that one of them can speak for all. The median of an even
/// number is the lower one: of two ranks, the faster.
///
///   StragglerWatch watch(2, {"rank 0 (a)", "rank 1 (b)"});
///   for (const auto& line : watch.observe(seconds)) log::warn("straggler", line);
class StragglerWatch {
 public:
  static constexpr int64_t kInARow = 5;
  /// Shorter delays are the system's, and cost nobody much.
  static constexpr double kMinDelay_s = 0.01;

  /// `factor` 0: nothing is said.
  StragglerWatch(double factor, std::vector<std::string> ranks);

  /// `seconds` by rank for one update, means over `updates` of them; ranks that are not known have
  /// 0. Returns what there is to say.
  std::vector<std::string> observe(const std::vector<double>& seconds, int64_t updates = 1);

 private:
  struct Rank {
    std::string name;
    bool is_named = false;
    double logged_ratio = 0;
    int64_t updates = 0;     // in a row in which it was the other way than was said
    double seconds_sum = 0;  // in these
    double median_sum = 0;
  };

  std::string observe(Rank& rank, double seconds, double median, int64_t updates) const;

  double factor_;
  std::vector<Rank> ranks_;
};

}  // namespace fleet
