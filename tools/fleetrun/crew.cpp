#include "tools/fleetrun/crew.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "fleet/core/format.h"
#include "fleet/core/log.h"

namespace fleet::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookEvery{20};
constexpr milliseconds kKillWait{5000};  // a process in an uninterruptible call dies late

}  // namespace

Crew::Crew(const Program& program, const std::vector<Environment>& environments,
           const std::vector<WorkerLog>& logs, Watchdog& watchdog)
    : echo_(std::make_unique<Echo>(logs.front().fd(), STDOUT_FILENO)) {
  workers_.reserve(environments.size());
  reported_.assign(environments.size(), false);
  try {
    for (size_t rank = 0; rank < environments.size(); ++rank) {
      const int output = rank == 0 ? echo_->writer() : logs[rank].fd();
      workers_.emplace_back(program, environments[rank], output, watchdog);
    }
  } catch (...) {
    kill_and_reap();
    throw;
  }
}

Crew::~Crew() { kill_and_reap(); }

std::vector<size_t> Crew::new_failures() {
  std::vector<size_t> failures;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const auto& ending = workers_[rank].ending();
    if (!ending || reported_[rank]) continue;
    reported_[rank] = true;
    if (!ending->success()) failures.push_back(rank);
  }
  return failures;
}

void Crew::restart(size_t local_rank, const Program& program, const Environment& environment,
                   const WorkerLog& log, Watchdog& watchdog) {
  auto& worker = workers_[local_rank];
  worker.send(SIGKILL);  // what it has started and left behind
  worker.reap();
  worker = Worker(program, environment, local_rank == 0 ? echo_->writer() : log.fd(), watchdog);
  reported_[local_rank] = false;
}

bool Crew::all_ended() {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](Worker& worker) { return worker.ending().has_value(); });
}

bool Crew::anything_left() {
  if (!all_ended()) return true;
  std::vector<pid_t> groups;
  for (const auto& worker : workers_) groups.push_back(worker.pid());
  return any_group_lives(groups);
}

void Crew::send(int signal) const {
  for (const auto& worker : workers_) worker.send(signal);
}

void Crew::end(const std::vector<int>& signals, std::chrono::duration<double> grace,
               SignalInbox& inbox) {
  const auto begin = Clock::now();
  const auto step = grace / static_cast<double>(std::max<size_t>(signals.size(), 1));
  size_t sent = 0;
  while (anything_left()) {
    const auto passed = Clock::now() - begin;
    if (sent < signals.size() && passed >= step * static_cast<double>(sent)) send(signals[sent++]);
    if (passed >= grace) break;
    const auto signal = inbox.next(kLookEvery);
    if (signal && *signal != SIGCHLD) {
      log::warn("fleetrun", format("{} again: killing all ranks", signal_name(*signal)));
      break;
    }
  }
  kill_and_reap();
  echo_->finish();
}

void Crew::kill_and_reap() {
  if (workers_.empty()) return;
  const auto deadline = Clock::now() + kKillWait;
  while (anything_left() && Clock::now() < deadline) {
    send(SIGKILL);
    std::this_thread::sleep_for(milliseconds(2));
  }
  for (auto& worker : workers_)
    if (worker.ending()) worker.reap();  // else not even SIGKILL ends it now: the watchdog's
  workers_.clear();
}

}  // namespace fleet::launch
