// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/stop_request.h"

#include <signal.h>
#include <string.h>

#include <array>
#include <atomic>
#include <mutex>

#include "fleet/core/process/process_state.h"
#include "fleet/core/text/format.h"

namespace fleet {
namespace {

constexpr std::array kSignals = {SIGTERM, SIGUSR1};

std::atomic<bool> g_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "it is set in a signal handler");

std::atomic<int> g_signal{0};  // that asked; 0: none, but a call of request_stop
std::atomic<int> g_sender{0};  // the process that sent it; 0: the kernel
static_assert(std::atomic<int>::is_always_lock_free, "they are set in a signal handler");

std::mutex g_mutex;  // guards what follows
int g_listeners = 0;

void on_signal(int signal, siginfo_t* info, void*) {
  if (info->si_code == SI_QUEUE && info->si_value.sival_int == kGroupIsBroken) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    return;
  }
  g_sender = info->si_code == SI_KERNEL ? 0 : info->si_pid;
  g_signal = signal;
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

void restore_default_actions() {
  for (const int signal : kSignals) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (is_ours(now)) ::signal(signal, SIG_DFL);
  }
  g_requested = false;
  g_signal = 0;
}

}  // namespace

void request_stop() noexcept { g_requested = true; }
bool stop_requested() noexcept { return g_requested; }

std::string stop_request_text() {
  const int signal = g_signal;
  if (signal == 0) return kAskedToStop;
  const int sender = g_sender;
  return format("{}: SIG{}{}", kAskedToStop, ::sigabbrev_np(signal),
                sender == 0 ? "" : " from " + described_process(sender));
}

StopSignals::StopSignals() {
  const std::lock_guard lock(g_mutex);
  if (g_listeners++ == 0) listen();
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(g_mutex);
  if (--g_listeners == 0) restore_default_actions();
}

}  // namespace fleet
