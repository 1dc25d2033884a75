#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/fleetrun/comebacks.h"
#include "tools/fleetrun/crew.h"
#include "tools/fleetrun/failure.h"
#include "tools/fleetrun/node_link.h"
#include "tools/fleetrun/options.h"
#include "tools/fleetrun/rendezvous.h"

namespace fleet::launch {

/// Starts the ranks of this node, watches them together with the launchers of the other nodes, and
/// ends or restarts all of them when one fails.
///
///   SignalInbox inbox;
///   Watchdog watchdog;
///   Launcher launcher(options, find_program(options.program, options.program_args), inbox,
///                     watchdog);
///   return launcher.run();
class Launcher {
 public:
  Launcher(const Options& options, Program program, SignalInbox& inbox, Watchdog& watchdog);

  /// Returns the exit code of the launcher.
  int run();

 private:
  /// Nothing when the ranks of all nodes succeeded.
  std::optional<Failure> run_attempt(NodeLink& link, int attempt);
  /// Until all nodes are ready to start together.
  std::optional<Failure> gather(NodeLink& link);
  /// Why the ranks have to be ended, and how.
  struct Stop {
    std::vector<Failure> failures;  // not empty
    std::vector<int> signals;       // one after the other, before SIGKILL
  };
  /// Until success everywhere (nothing), or a failure anywhere and a moment more for others that
  /// may explain it.
  std::optional<Stop> supervise(NodeLink& link, Crew& crew, int attempt);
  void bring_back(Comebacks& comebacks, Crew& crew, int attempt);
  /// The failure that all nodes name.
  Failure agree(NodeLink& link) const;

  Failure describe(Crew& crew, size_t local_rank) const;
  Failure stopped_by(int signal) const;
  void announce() const;
  std::vector<Environment> environments(int attempt) const;

  const Options options_;
  const Program program_;
  SignalInbox& inbox_;
  Watchdog& watchdog_;
  const std::string log_dir_;  // absolute
  std::vector<WorkerLog> logs_;
  int max_restarts_ = 0;
  Cluster cluster_;
};

}  // namespace fleet::launch
