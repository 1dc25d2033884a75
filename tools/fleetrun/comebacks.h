#pragma once

#include <chrono>
#include <map>
#include <vector>

#include "tools/fleetrun/crew.h"
#include "tools/fleetrun/failure.h"
#include "tools/fleetrun/options.h"

namespace fleet::launch {

/// With --elastic: decides for a rank that fails whether the others go on without it, and when it
/// is started again.
///
///   Comebacks comebacks(options, max_restarts);
///   if (!comebacks.take(crew, rank, failure)) ...;            // the failure of all
///   for (const auto rank : comebacks.due(crew)) crew.restart(rank, ...);
class Comebacks {
 public:
  Comebacks(const Options& options, int max_restarts);

  /// False: the others cannot go on, or nobody is left.
  bool take(Crew& crew, size_t local_rank, const Failure& failure);
  /// Those whose time has come, unless the training is over.
  std::vector<size_t> due(Crew& crew);
  /// How many times that rank has been started again.
  int times(size_t local_rank) const;
  /// Whether somebody has still to be started again.
  bool is_waiting(Crew& crew);
  /// Failures that the others went on after a moment ago: one of them may be the cause of theirs.
  std::vector<Failure> recent() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Loss {
    Clock::time_point when;
    Failure failure;
  };

  const Options& options_;
  int max_restarts_;
  std::map<size_t, int> times_;
  std::map<size_t, Clock::time_point> due_;
  std::vector<Loss> losses_;
};

}  // namespace fleet::launch
