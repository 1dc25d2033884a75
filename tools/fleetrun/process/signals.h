// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>

#include "fleet/core/process/descriptor.h"

namespace fleet::launch {

/// The user's request to end, before any rank has started.
struct Interrupted {
  int signal;
};

/// Signals as messages to be read (signalfd), instead of asynchronous handlers.
///
/// Construct it before any thread starts: threads inherit the mask, and a signal that one thread
/// does not block would end the process. Signals that were ignored at the start (nohup, a job in
/// the background of a script) stay ignored.
///
///   SignalInbox inbox;
///   if (auto signal = inbox.next(100ms)) ...   // SIGCHLD, SIGINT, SIGTERM ...
class SignalInbox {
 public:
  SignalInbox();

  /// The next signal, or nothing after `timeout`.
  std::optional<int> next(std::chrono::milliseconds timeout);

  /// The sender of the last one that was not SIGCHLD: "pid 4242 (scancel)", "the terminal".
  const std::string& sender() const { return sender_; }

  /// Throws Interrupted when the user has asked to end: for waits before the ranks are started.
  void check();

 private:
  Descriptor signals_;
  std::string sender_;
};

/// The exit code of a shell for that signal. A scheduler's warning (SIGUSR1) counts as SIGTERM,
/// which is passed on for it.
int exit_code_of(int signal);

/// "SIGSEGV", or "signal 64" for one without a name.
std::string signal_name(int signal);

}  // namespace fleet::launch
