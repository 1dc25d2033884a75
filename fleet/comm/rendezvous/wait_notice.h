// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace fleet::comm {

/// "rank 3", "ranks 1, 3", "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 56 more"
std::string ranks_text(const std::vector<int>& ranks);

/// Logs regularly what this process waits for, and for how long already.
///
///   WaitNotice notice("init", limit);
///   while (!(missing = not_arrived()).empty()) notice.log_if_due(ranks_text(missing));
///   // [init] rank 0: waits for ranks 1, 3 (20 s of 600 s)
class WaitNotice {
 public:
  static constexpr std::chrono::milliseconds kEvery{10'000};

  WaitNotice(std::string area, std::chrono::milliseconds limit,
             std::chrono::milliseconds every = kEvery)
      : area_(std::move(area)), limit_(limit), every_(every), next_(Clock::now() + every) {}

  /// Logs if `every` has passed since the last line.
  void log_if_due(const std::string& waits_for);
  bool is_due() const { return Clock::now() >= next_; }
  /// The time until the next line: a wait should not be longer.
  std::chrono::milliseconds until_next() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::string area_;
  std::chrono::milliseconds limit_;
  std::chrono::milliseconds every_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point next_;
};

}  // namespace fleet::comm
