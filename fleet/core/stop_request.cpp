#include "fleet/core/stop_request.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <mutex>

namespace fleet {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGUSR1};

std::atomic<bool> g_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "it is set in a signal handler");

std::mutex g_mutex;  // guards what follows
int g_listeners = 0;

void on_signal(int signal, siginfo_t* info, void*) {
  if (info->si_code == SI_QUEUE && info->si_value.sival_int == kGroupIsBroken) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    return;
  }
  request_stop();
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
}

bool is_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

void listen() {
  struct sigaction listening {};
  listening.sa_sigaction = on_signal;
  listening.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : kSignals) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (is_default(before)) ::sigaction(signal, &listening, nullptr);
  }
}

void fall_silent() {
  for (const int signal : kSignals) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (is_ours(now)) ::signal(signal, SIG_DFL);
  }
  g_requested = false;
}

}  // namespace

void request_stop() noexcept { g_requested = true; }
bool stop_requested() noexcept { return g_requested; }

StopSignals::StopSignals() {
  const std::lock_guard lock(g_mutex);
  if (g_listeners++ == 0) listen();
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(g_mutex);
  if (--g_listeners == 0) fall_silent();
}

}  // namespace fleet
