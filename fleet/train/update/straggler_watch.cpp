// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/straggler_watch.h"

#include <algorithm>
#include <utility>

#include "fleet/core/text/format.h"

namespace fleet {
namespace {

// Of those that are known; 0 for none.
double lower_median(std::vector<double> seconds) {
  std::erase_if(seconds, [](double value) { return !(value > 0); });
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>((seconds.size() - 1) / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace

StragglerWatch::StragglerWatch(double factor, std::vector<std::string> ranks) : factor_(factor) {
  for (auto& name : ranks) ranks_.push_back({.name = std::move(name)});
}

std::vector<std::string> StragglerWatch::observe(const std::vector<double>& seconds,
                                                 int64_t updates) {
  std::vector<std::string> lines;
  if (factor_ == 0) return lines;
  const double median = lower_median(seconds);
  for (size_t rank = 0; rank < std::min(seconds.size(), ranks_.size()); ++rank) {
    if (!(seconds[rank] > 0)) continue;
    auto line = observe(ranks_[rank], seconds[rank], median, updates);
    if (!line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

std::string StragglerWatch::observe(Rank& rank, double seconds, double median,
                                    int64_t updates) const {
  const bool is_slow = seconds > factor_ * median && seconds - median > kMinDelay_s;
  const bool is_much_worse = is_slow && rank.is_named && seconds > 2 * rank.logged_ratio * median;
  if (is_slow == rank.is_named && !is_much_worse) {
    rank.updates = 0;
    rank.seconds_sum = rank.median_sum = 0;
    return "";
  }
  rank.updates += updates;
  rank.seconds_sum += seconds * static_cast<double>(updates);
  rank.median_sum += median * static_cast<double>(updates);
  if (rank.updates < kInARow) return "";

  const auto count = static_cast<double>(rank.updates);
  const double own = rank.seconds_sum / count, usual = rank.median_sum / count;
  const auto line =
      is_slow
          ? format(
                "{} slows the others down: its own compute for an update takes {:.3g} s, {:.1f} "
                "times the {:.3g} s that ranks usually need, in the last {} updates",
                rank.name, own, own / usual, usual, rank.updates)
          : format(
                "{} is as fast as the others again: {:.3g} s for an update, and ranks usually need "
                "{:.3g} s",
                rank.name, own, usual);
  rank = {
      .name = std::move(rank.name), .is_named = is_slow, .logged_ratio = is_slow ? own / usual : 0};
  return line;
}

}  // namespace fleet
