// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace fleet {

/// Asks the training of this process to stop after the update that it is in, with all other ranks:
/// what SIGTERM does while there is a StopSignals. Safe in a signal handler.
void request_stop() noexcept;
bool stop_requested() noexcept;

/// What the rank that got the signal itself prints; fleetrun finds it by this text.
inline constexpr const char* kAskedToStop = "this rank was asked to stop";
/// That text with the signal and its sender, as far as they are known: "...: SIGTERM from pid 4242
/// (scancel)".
std::string stop_request_text();

/// While there is one, SIGTERM and SIGUSR1, which schedulers send before they take a machine away,
/// are requests to stop instead of the end. A signal that the program handles itself, or ignores,
/// is left to it; its handler may call `request_stop`. With the last one a request is forgotten.
///
/// `fleet::Snapshots` has one.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
};

/// What fleetrun sends along with SIGTERM (sigqueue) after a rank was lost: the update under way
/// cannot be finished, so the rank exits at once.
constexpr int kGroupIsBroken = 0x666c;

/// A training has stopped in order, as it was asked to. No error: thrown so that nothing that
/// belongs behind the training runs, and `run_main` makes `kExitCode` of it.
class Stopped : public std::exception {
 public:
  /// What a shell makes of SIGTERM, so that schedulers see that the program has not finished.
  static constexpr int kExitCode = 143;

  explicit Stopped(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

}  // namespace fleet
