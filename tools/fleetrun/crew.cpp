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
constexpr milliseconds kSameRequest{1000};

// Schedulers send a warning (SIGUSR1) and then SIGTERM, or SIGTERM by two ways at once: only what
// comes later, or from a keyboard, means that somebody will not wait.
bool is_impatient(int signal, int asked_by, Clock::duration passed) {
  if (signal == SIGCHLD || signal == SIGUSR1) return false;
  if (signal == SIGINT || asked_by == 0 || asked_by == SIGINT) return true;
  return asked_by != SIGUSR1 && passed > kSameRequest;
}

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

bool Crew::all_ended() const {
  return std::all_of(reported_.begin(), reported_.end(), [](bool reported) { return reported; });
}

bool Crew::anything_left() {
  const bool any_runs = std::any_of(workers_.begin(), workers_.end(),
                                    [](Worker& worker) { return !worker.ending(); });
  return any_runs || !living_in(groups()).empty();
}

std::vector<pid_t> Crew::groups() const {
  std::vector<pid_t> groups;
  for (const auto& worker : workers_) groups.push_back(worker.pid());
  return groups;
}

std::vector<size_t> Crew::stopped() const {
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < workers_.size(); ++rank)
    if (workers_[rank].is_stopped()) ranks.push_back(rank);
  return ranks;
}

bool Crew::none_runs() {
  return std::all_of(workers_.begin(), workers_.end(), [](Worker& worker) {
    return worker.ending().has_value() || worker.is_stopped();
  });
}

bool Crew::any_handles(int signal) const {
  const auto processes = living_in(groups());
  return std::any_of(processes.begin(), processes.end(),
                     [&](pid_t pid) { return handles_signal(pid, signal); });
}

void Crew::send(int signal, bool group_is_broken) const {
  for (const auto& worker : workers_) {
    if (group_is_broken && signal == SIGTERM) {
      worker.send_broken();
    } else {
      worker.send(signal);
    }
  }
}

void Crew::end(const Farewell& farewell, SignalInbox& inbox) {
  const auto begin = Clock::now();
  const auto& signals = farewell.signals;
  const auto step = farewell.grace / static_cast<double>(std::max<size_t>(signals.size(), 1));
  size_t sent = 0;
  while (anything_left()) {
    const auto passed = Clock::now() - begin;
    if (sent < signals.size() && passed >= step * static_cast<double>(sent))
      send(signals[sent++], farewell.group_is_broken);
    if (passed >= farewell.grace) break;
    const auto signal = inbox.next(kLookEvery);
    if (signal && is_impatient(*signal, farewell.asked_by, passed)) {
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
    send(SIGKILL, false);
    std::this_thread::sleep_for(milliseconds(2));
  }
  for (auto& worker : workers_)
    if (worker.ending()) worker.reap();  // else not even SIGKILL ends it now: the watchdog's
  workers_.clear();
}

}  // namespace fleet::launch
