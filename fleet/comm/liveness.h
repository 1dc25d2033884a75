#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fleet/comm/store.h"

namespace fleet::comm {

/// A rank's place in a job, and which of the processes it is that have sat there, counted from 1.
struct Seat {
  int rank = 0;
  int64_t life = 0;

  auto operator<=>(const Seat&) const = default;
};

/// Which processes of a job are gone for good, so that nobody has to wait for them: their process
/// has ended (same machine), another one has taken the seat, somebody says so, or they have been
/// silent for `timeout`. A slow process is not gone, as its pulse (PeerWatch) goes on.
///
/// What one rank finds out by silence it tells to all, so that they do not disagree; and a process
/// that was taken for gone and wakes up finds it out as well.
///
///   Liveness liveness(store, rank, 60s);
///   while (!done() && liveness.gone_among(others).empty()) wait_a_little();
class Liveness {
 public:
  /// Takes the seat of `rank`.
  Liveness(Store store, int rank, std::chrono::milliseconds timeout);

  const Seat& own() const { return own_; }
  /// The process that sits on `rank` now; waits up to `limit` for a first one.
  std::optional<Seat> seat_of(int rank, std::chrono::milliseconds limit);

  /// Asks the store once, whatever the number of seats, unless something has changed.
  std::vector<Seat> gone_among(const std::vector<Seat>& seats);
  bool is_gone(const Seat& seat) { return !gone_among({seat}).empty(); }

  /// Silence counts from here, or from `waited` ago.
  void begin_wait(std::chrono::milliseconds waited = {});

  void declare_gone(const Seat& seat);

 private:
  using Clock = std::chrono::steady_clock;
  struct Process {
    std::string host;
    int pid = 0;
    uint64_t started = 0;
  };
  struct Listening {
    std::optional<uint64_t> beat;
    Clock::time_point sampled;
    std::chrono::milliseconds silent{};
  };

  const Process& process_of(const Seat& seat);
  bool has_ended_here(const Seat& seat);
  bool is_said_to_be_gone(const Seat& seat, int64_t changes);
  bool is_silent(const Seat& seat);

  Store store_;  // as PeerWatch has it
  Store table_;
  std::chrono::milliseconds timeout_;
  Seat own_;
  std::string host_;
  std::map<Seat, Process> processes_;
  std::set<Seat> gone_;
  std::map<Seat, int64_t> asked_;  // how many changes there were when the store was asked
  std::map<Seat, Listening> listening_;
  Clock::time_point wait_began_;
  std::chrono::milliseconds waited_{};
};

}  // namespace fleet::comm
