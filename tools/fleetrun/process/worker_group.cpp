// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/process/worker_group.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "fleet/core/log.h"
#include "fleet/core/text/format.h"

#include "tools/fleetrun/process/marked_processes.h"

namespace fleet::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{20};
constexpr milliseconds kKillWait{5000};  // a process in an uninterruptible call dies late
constexpr milliseconds kSameRequest{1000};
constexpr std::chrono::duration<double> kDetachedGrace{2};  // not interruptible

// Schedulers send a warning (SIGUSR1) and then SIGTERM, or SIGTERM by two ways at once: only a
// later signal, or one from a keyboard, asks for an immediate end.
bool asks_for_kill(int signal, int asked_by, Clock::duration passed) {
  if (signal == SIGCHLD || signal == SIGUSR1) return false;
  if (signal == SIGINT || asked_by == 0 || asked_by == SIGINT) return true;
  return asked_by != SIGUSR1 && passed > kSameRequest;
}

}  // namespace

WorkerGroup::WorkerGroup(const Program& program, const std::vector<Environment>& environments,
                         WorkerLogs& logs, Watchdog& watchdog)
    : logs_(logs), watchdog_(watchdog), shown_(STDOUT_FILENO), others_(OutputTee::kNoTerminal) {
  workers_.reserve(environments.size());
  reported_.assign(environments.size(), false);
  try {
    for (size_t rank = 0; rank < environments.size(); ++rank)
      workers_.push_back(start(rank, program, environments[rank]));
  } catch (...) {
    kill_and_reap();
    throw;
  }
}

WorkerGroup::~WorkerGroup() { kill_and_reap(); }

std::vector<size_t> WorkerGroup::new_failures() {
  std::vector<size_t> failures;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const auto& exit_status = workers_[rank].exit_status();
    if (!exit_status || reported_[rank]) continue;
    reported_[rank] = true;
    if (!exit_status->success()) failures.push_back(rank);
  }
  return failures;
}

Worker WorkerGroup::start(size_t local_rank, const Program& program,
                          const Environment& environment) {
  const Descriptor output = (local_rank == 0 ? shown_ : others_).add(logs_[local_rank]);
  return Worker(program, environment, output.get(), watchdog_);
}

void WorkerGroup::restart(size_t local_rank, const Program& program,
                          const Environment& environment) {
  auto& worker = workers_[local_rank];
  worker.send(SIGKILL);  // what it has started and left behind
  worker.reap();
  worker = start(local_rank, program, environment);
  reported_[local_rank] = false;
}

void WorkerGroup::flush_output() {
  shown_.flush();
  others_.flush();
}

bool WorkerGroup::all_ended() const {
  return std::all_of(reported_.begin(), reported_.end(), [](bool reported) { return reported; });
}

bool WorkerGroup::anything_left() {
  const bool any_runs = std::any_of(workers_.begin(), workers_.end(),
                                    [](Worker& worker) { return !worker.exit_status(); });
  return any_runs || !living_in(groups()).empty();
}

std::vector<pid_t> WorkerGroup::groups() const {
  std::vector<pid_t> groups;
  for (const auto& worker : workers_) groups.push_back(worker.pid());
  return groups;
}

std::vector<size_t> WorkerGroup::stopped() const {
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < workers_.size(); ++rank)
    if (workers_[rank].is_stopped()) ranks.push_back(rank);
  return ranks;
}

bool WorkerGroup::none_runs() {
  return std::all_of(workers_.begin(), workers_.end(), [](Worker& worker) {
    return worker.exit_status().has_value() || worker.is_stopped();
  });
}

bool WorkerGroup::any_handles(int signal) const {
  const auto processes = living_in(groups());
  return std::any_of(processes.begin(), processes.end(),
                     [&](pid_t pid) { return handles_signal(pid, signal); });
}

void WorkerGroup::send(int signal, bool group_is_broken) const {
  for (const auto& worker : workers_) {
    if (group_is_broken && signal == SIGTERM) {
      worker.send_group_broken();
    } else {
      worker.send(signal);
    }
  }
}

void WorkerGroup::end(const TerminationPolicy& termination, SignalInbox& inbox) {
  const auto begin = Clock::now();
  const auto& signals = termination.signals;
  const auto step = termination.grace / static_cast<double>(std::max<size_t>(signals.size(), 1));
  size_t sent = 0;
  while (anything_left()) {
    const auto passed = Clock::now() - begin;
    if (sent < signals.size() && passed >= step * static_cast<double>(sent))
      send(signals[sent++], termination.group_is_broken);
    if (passed >= termination.grace) break;
    const auto signal = inbox.next(kPollInterval);
    if (signal && asks_for_kill(*signal, termination.asked_by, passed)) {
      log::warn("fleetrun", format("{} again: killing all ranks", signal_name(*signal)));
      break;
    }
  }
  end_detached(termination.grace - (Clock::now() - begin));
  kill_and_reap();
  shown_.finish();
  others_.finish();
}

// Processes that have left their rank's group, and with it the reach of the signals above.
void WorkerGroup::end_detached(std::chrono::duration<double> grace) {
  if (anything_left() || marked_processes(watchdog_.launch_id()).empty()) return;
  signal_marked(watchdog_.launch_id(), SIGTERM);
  const auto deadline = Clock::now() + std::min(grace, kDetachedGrace);
  while (Clock::now() < deadline && !marked_processes(watchdog_.launch_id()).empty())
    std::this_thread::sleep_for(kPollInterval);
}

void WorkerGroup::kill_and_reap() {
  if (workers_.empty()) return;
  const auto deadline = Clock::now() + kKillWait;
  while (anything_left() && Clock::now() < deadline) {
    send(SIGKILL, false);
    std::this_thread::sleep_for(milliseconds(2));
  }
  kill_marked(watchdog_.launch_id(), kKillWait);
  for (auto& worker : workers_)
    if (worker.exit_status()) worker.reap();  // else not even SIGKILL ends it now: the watchdog's
  workers_.clear();
}

}  // namespace fleet::launch
