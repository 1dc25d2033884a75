#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "tests/support/launched.h"

namespace fleet::launch {

/// Kills and stops random ranks of a job on this machine, at random moments. Every rank says "pid
/// NUMBER" when it starts.
///
///   Disturber disturber(run, 4, /*seed=*/7);
///   while (faults-- > 0 && disturber.disturb()) {}
class Disturber {
 public:
  Disturber(const Launched& run, int ranks, uint64_t seed)
      : run_(run), ranks_(ranks), random_(seed) {}

  /// Waits a random while, then kills (SIGKILL) or stops (SIGSTOP) a rank. False when the job has
  /// ended before.
  bool disturb();
  /// "SIGKILL to rank 3 after 1234 ms", one line each, for a failure.
  const std::string& history() const { return history_; }

 private:
  const Launched& run_;
  int ranks_;
  std::mt19937_64 random_;
  std::string history_;
};

}  // namespace fleet::launch
