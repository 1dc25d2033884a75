#include "tests/ranks/disturber.h"

#include <signal.h>

#include <thread>

#include "fleet/core/format.h"

namespace fleet::launch {
namespace {

using std::chrono::milliseconds;

constexpr int kShortest_ms = 300;
constexpr int kLongest_ms = 4000;

// Of the newest process of a rank; 0 when it has not spoken yet.
pid_t newest_pid(const std::string& log) {
  const std::string head = "\npid ";
  const auto lines = '\n' + log;
  const auto at = lines.rfind(head);
  return at == lines.npos ? 0 : std::atoi(lines.c_str() + at + head.size());
}

}  // namespace

bool Disturber::disturb() {
  const milliseconds pause(kShortest_ms +
                           static_cast<int>(random_() % (kLongest_ms - kShortest_ms)));
  const auto rank = static_cast<int>(random_() % static_cast<uint64_t>(ranks_));
  const int signal = random_() % 3 == 0 ? SIGSTOP : SIGKILL;
  std::this_thread::sleep_for(pause);
  pid_t victim = 0;
  const auto is_there = [&] {
    victim = newest_pid(run_.log(rank));
    return is_gone(run_.pid()) || (victim > 0 && !is_gone(victim));
  };
  if (!eventually(is_there, std::chrono::seconds(60)) || is_gone(run_.pid())) return false;
  history_ += format("{} to rank {} (pid {}) after {} ms\n",
                     signal == SIGSTOP ? "SIGSTOP" : "SIGKILL", rank, victim, pause.count());
  return ::kill(victim, signal) == 0;
}

}  // namespace fleet::launch
