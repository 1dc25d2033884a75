#pragma once

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>

namespace fleet::launch {

/// The user's wish to end, while nothing has to be ended yet.
struct Interrupted {
  int signal;
};

/// Signals as messages that are read when it suits, instead of handlers that break in anywhere.
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
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  /// The next signal, or nothing after `timeout`.
  std::optional<int> next(std::chrono::milliseconds timeout);

  /// Throws Interrupted when the user has asked to end: for waits before the ranks are started.
  void check();

 private:
  int fd_ = -1;
};

/// "SIGSEGV", or "signal 64" for one without a name.
std::string signal_name(int signal);

}  // namespace fleet::launch
