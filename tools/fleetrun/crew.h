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

/// All ranks of this node during one attempt: started together, ended together.
///
///   Crew crew(program, environments, logs, watchdog);
///   while (!crew.all_ended()) inbox.next(100ms);
///   crew.end({SIGTERM}, 5s, inbox);
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
  bool all_ended();
  /// Another process for a rank whose own has ended.
  void restart(size_t local_rank, const Program& program, const Environment& environment,
               const WorkerLog& log, Watchdog& watchdog);
  Echo& echo() { return *echo_; }

  /// Sends `signals` one after the other, spread over `grace`, then SIGKILL, to whatever is left of
  /// every rank's group; a signal of the user's on the way brings SIGKILL at once. Returns when
  /// nothing is left, and rank 0's output is complete.
  void end(const std::vector<int>& signals, std::chrono::duration<double> grace,
           SignalInbox& inbox);

 private:
  bool anything_left();
  void send(int signal) const;
  void kill_and_reap();

  std::unique_ptr<Echo> echo_;
  std::vector<Worker> workers_;
  std::vector<bool> reported_;
};

}  // namespace fleet::launch
