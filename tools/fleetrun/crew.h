#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tools/fleetrun/echo.h"
#include "tools/fleetrun/signals.h"
#include "tools/fleetrun/watchdog.h"
#include "tools/fleetrun/worker.h"
#include "tools/fleetrun/worker_log.h"

namespace fleet::launch {

/// How ranks are ended.
struct Farewell {
  std::vector<int> signals;                // one after the other, spread over `grace`
  std::chrono::duration<double> grace{0};  // then SIGKILL
  bool group_is_broken = false;            // a rank is lost: there is nothing left to save
  int asked_by = 0;                        // the signal of the user's that is the reason, if any
};

/// All ranks of this node during one attempt: started together, ended together.
///
///   Crew crew(program, environments, logs, watchdog);
///   while (!crew.all_ended()) {
///     inbox.next(100ms);
///     for (const size_t rank : crew.new_failures()) ...;
///   }
///   crew.end({.signals = {SIGTERM}, .grace = 5s}, inbox);
class Crew {
 public:
  /// `environments` and `logs` by local rank. When one cannot be started, those already started are
  /// killed before the error goes on.
  Crew(const Program& program, const std::vector<Environment>& environments,
       const std::vector<WorkerLog>& logs, Watchdog& watchdog);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  size_t size() const { return workers_.size(); }
  const Worker& worker(size_t local_rank) const { return workers_[local_rank]; }

  /// Local ranks that have ended with a failure since the last call.
  std::vector<size_t> new_failures();
  /// As far as `new_failures` has seen: nobody has ended without a look at how.
  bool all_ended() const;
  /// Another process for a rank whose own has ended.
  void restart(size_t local_rank, const Program& program, const Environment& environment,
               const WorkerLog& log, Watchdog& watchdog);
  Echo& echo() { return *echo_; }

  /// Local ranks that are stopped (SIGSTOP).
  std::vector<size_t> stopped() const;
  /// Nothing is left but what is stopped.
  bool none_runs();
  /// A rank, or what it has started, has a handler for that signal.
  bool any_handles(int signal) const;

  /// Says farewell to whatever is left of every rank's group; a further signal of the user's on the
  /// way brings SIGKILL at once. Returns when nothing is left, and rank 0's output is complete.
  void end(const Farewell& farewell, SignalInbox& inbox);

 private:
  bool anything_left();
  std::vector<pid_t> groups() const;
  void send(int signal, bool group_is_broken) const;
  void kill_and_reap();

  std::unique_ptr<Echo> echo_;
  std::vector<Worker> workers_;
  std::vector<bool> reported_;
};

}  // namespace fleet::launch
