// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks/fault_injector.h"

#include <signal.h>

#include <array>
#include <thread>

#include "fleet/core/text/format.h"

namespace fleet::launch {
namespace {

using std::chrono::milliseconds;

constexpr int kShortest_ms = 300;
constexpr int kLongest_ms = 4000;
constexpr milliseconds kLauncherStopped{1000};

std::string signal_name(int signal) {
  return signal == SIGSTOP ? "SIGSTOP" : signal == SIGTERM ? "SIGTERM" : "SIGKILL";
}

}  // namespace

std::string Fault::kind() const {
  return format("{} to {}", signal_name(signal), rank == kLauncher ? "fleetrun" : "a rank");
}

bool Fault::ends_job() const {
  return signal == SIGTERM || (signal == SIGKILL && rank == kLauncher);
}

pid_t newest_pid(const std::string& log) {
  const std::string head = "\npid ";
  const auto lines = '\n' + log;
  const auto at = lines.rfind(head);
  return at == lines.npos ? 0 : std::atoi(lines.c_str() + at + head.size());
}

Fault FaultInjector::draw() {
  const auto victims = static_cast<uint64_t>(ranks_ + (options_.launcher ? 1 : 0));
  const auto victim = static_cast<int>(random_() % victims);
  constexpr std::array<int, 3> kSignals = {SIGSTOP, SIGKILL, SIGTERM};
  const int signal = kSignals[random_() % 3];
  return {.signal = signal == SIGTERM && !options_.term ? SIGKILL : signal,
          .rank = victim == ranks_ ? Fault::kLauncher : victim};
}

bool FaultInjector::inject() {
  const milliseconds pause(kShortest_ms +
                           static_cast<int>(random_() % (kLongest_ms - kShortest_ms)));
  last_ = draw();
  std::this_thread::sleep_for(pause);
  pid_t victim = run_.pid();
  const auto is_there = [&] {
    if (last_.rank != Fault::kLauncher) victim = newest_pid(run_.log(last_.rank));
    return is_gone(run_.pid()) || (victim > 0 && !is_gone(victim));
  };
  if (!eventually(is_there, std::chrono::seconds(60)) || is_gone(run_.pid())) return false;
  history_ +=
      format("{} {} (pid {}) after {} ms\n", last_.kind(), last_.rank, victim, pause.count());
  last_.pid = victim;
  if (::kill(victim, last_.signal) != 0) return false;
  const auto stopped = last_.rank == Fault::kLauncher ? kLauncherStopped : options_.wake_rank_after;
  if (last_.signal == SIGSTOP && stopped.count() > 0) {
    std::this_thread::sleep_for(stopped);
    ::kill(victim, SIGCONT);
  }
  return true;
}

}  // namespace fleet::launch
