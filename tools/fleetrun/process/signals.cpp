// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/process/signals.h"

#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "fleet/core/error.h"
#include "fleet/core/process/process_state.h"
#include "fleet/core/text/format.h"

namespace fleet::launch {

SignalInbox::SignalInbox() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaddset(&wanted, signal);
  }
  // A parent may leave SIGCHLD ignored, and then no exit status can be collected.
  signal(SIGCHLD, SIG_DFL);
  // A closed terminal must not end the launcher before it has ended its ranks.
  signal(SIGPIPE, SIG_IGN);
  sigprocmask(SIG_BLOCK, &wanted, nullptr);
  signals_ = Descriptor(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) throw Error("fleetrun", format("cannot listen to signals ({})", strerror(errno)));
}

std::optional<int> SignalInbox::next(std::chrono::milliseconds timeout) {
  pollfd readable{signals_.get(), POLLIN, 0};
  if (::poll(&readable, 1, static_cast<int>(timeout.count())) != 1) return std::nullopt;
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info)))
    return std::nullopt;
  if (info.ssi_signo != SIGCHLD)
    sender_ = info.ssi_code == SI_KERNEL ? "the terminal"
                                         : described_process(static_cast<int>(info.ssi_pid));
  return static_cast<int>(info.ssi_signo);
}

void SignalInbox::check() {
  while (const auto signal = next(std::chrono::milliseconds(0)))
    if (*signal != SIGCHLD) throw Interrupted{*signal};
}

int exit_code_of(int signal) { return 128 + (signal == SIGUSR1 ? SIGTERM : signal); }

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? format("SIG{}", name) : format("signal {}", signal);
}

}  // namespace fleet::launch
