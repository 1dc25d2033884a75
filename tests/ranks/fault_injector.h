// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <random>
#include <string>

#include "tests/support/launched.h"

namespace fleet::launch {

struct Fault {
  static constexpr int kLauncher = -1;

  int signal = 0;
  int rank = 0;   ///< kLauncher: fleetrun itself
  pid_t pid = 0;  ///< of that process

  /// "SIGKILL to a rank", "SIGTERM to fleetrun"
  std::string kind() const;
  /// The job ends by it, and whoever started it has to start it again: unless it was SIGTERM to a
  /// rank that does not handle it yet.
  bool ends_job() const;
};

struct FaultInjectorOptions {
  bool launcher = false;                        ///< fleetrun is among the victims
  bool term = false;                            ///< SIGTERM is among the signals
  std::chrono::milliseconds wake_rank_after{};  ///< that was stopped; 0: it stays so
};

/// Kills and stops random ranks of a job on this machine, at random moments. Every rank says "pid
/// NUMBER" when it starts.
///
///   FaultInjector fault_injector(run, 4, /*seed=*/7);
///   while (faults-- > 0 && fault_injector.inject()) {}
class FaultInjector {
 public:
  FaultInjector(const Launched& run, int ranks, uint64_t seed,
                const FaultInjectorOptions& options = {})
      : run_(run), ranks_(ranks), options_(options), random_(seed) {}

  /// Waits a random while, then kills (SIGKILL), stops (SIGSTOP) or ends (SIGTERM) a rank, or
  /// fleetrun, which is woken up (SIGCONT) after a second. False when the job has ended before.
  bool inject();
  /// What the last `inject` did.
  const Fault& last() const { return last_; }
  /// "SIGKILL to rank 3 after 1234 ms", one line each, for a failure.
  const std::string& history() const { return history_; }

 private:
  Fault draw();

  const Launched& run_;
  int ranks_;
  FaultInjectorOptions options_;
  std::mt19937_64 random_;
  Fault last_;
  std::string history_;
};

/// Of the newest process of a rank, by its log; 0 when it has not spoken yet.
pid_t newest_pid(const std::string& log);

}  // namespace fleet::launch
