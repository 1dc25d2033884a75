// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fleet::launch {

/// What the log of one rank of elastic_program.cpp tells, over all the processes that wrote it.
///
///   const auto history = RankHistory::in(training.log(1));
///   if (history.is_training()) ::kill(history.pids.back(), SIGKILL);
struct RankHistory {
  struct Update {
    int64_t number = 0;
    int64_t epoch = 0;
    double at = 0;  // seconds of the machine's steady clock
  };
  std::vector<pid_t> pids = {};
  std::vector<Update> updates = {};  // those that ended with an average
  size_t updates_before = 0;         // by earlier processes
  std::string digest = {};           // of the parameters in the end
  double loss = -1;                  // in the end

  static RankHistory in(const std::string& log);

  /// Its last process lives, and has averaged with the others.
  bool is_training() const;
  /// When the next average after `time` was.
  std::optional<double> next_update_after(double time) const;
};

/// The clock of `Update::at`.
double steady_seconds();

}  // namespace fleet::launch
