#pragma once

#include <chrono>
#include <map>
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
    Farewell farewell;
  };
  /// Until success everywhere (nothing), or a failure anywhere and a moment more for others that
  /// may explain it.
  std::optional<Stop> supervise(NodeLink& link, Crew& crew, int attempt);
  void bring_back(Comebacks& comebacks, Crew& crew, int attempt);
  /// The failure that all nodes name.
  Failure agree(NodeLink& link) const;

  /// A pause before a restart when one after the other fails at once; only node 0 makes it, for the
  /// others wait for it. Returns the signal that ended it early.
  std::optional<int> back_off();
  void count_quick_failures(std::chrono::duration<double> attempt_lasted);
  /// Says whom the others wait for; a failure when it has been too long.
  std::optional<Failure> wait_for_lost_node(const NodeLink::View& view,
                                            std::chrono::duration<double> waited);
  Failure report_stop(NodeLink& link, int signal) const;
  /// Says who is stopped, and who runs again.
  void look_for_stopped(Crew& crew);
  /// A rank that nobody may be waiting for any more: the others have ended.
  std::optional<size_t> stopped_too_long(const Crew& crew) const;
  Failure describe_stopped(const Crew& crew, size_t local_rank) const;
  double peer_limit_s() const;
  /// What becomes of the ranks after `failures`, the user's wish among them.
  Stop stop_after(std::vector<Failure> failures, const Crew& crew, int asked_by) const;

  Failure describe(Crew& crew, size_t local_rank) const;
  std::string name_of(const Crew& crew, size_t local_rank) const;
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
  int quick_failures_ = 0;  // attempts in a row that failed at once
  std::map<size_t, std::chrono::steady_clock::time_point> stopped_since_;  // local ranks
  std::chrono::steady_clock::time_point next_look_;
  std::chrono::steady_clock::time_point next_word_;
  Cluster cluster_;
};

}  // namespace fleet::launch
