// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fleet/comm/rendezvous/store/store.h"

namespace fleet::comm {

/// A rank's place in a job, and the incarnation of its process: 1 for the first, 2 after a restart.
struct Slot {
  int rank = 0;
  int64_t incarnation = 0;

  auto operator<=>(const Slot&) const = default;
};

/// Which processes of a job are lost for good: the process has ended (same machine), a newer
/// incarnation has its slot, another rank has declared it lost, or its heartbeat (PeerWatch) has
/// stopped for `timeout`. A slow process is not lost: its heartbeat continues.
///
/// A rank that detects a stopped heartbeat declares the slot lost in the store, so that all ranks
/// agree; a process that was declared lost and resumes reads that too.
///
///   Liveness liveness(store, rank, 60s);
///   while (!done() && liveness.lost_among(others).empty()) wait_a_little();
class Liveness {
 public:
  /// Takes the slot of `rank`.
  Liveness(Store store, int rank, std::chrono::milliseconds timeout);

  const Slot& own() const { return own_; }
  /// The current incarnation of `rank`; waits up to `limit` for a first one.
  std::optional<Slot> slot_of(int rank, std::chrono::milliseconds limit);

  /// One store request for any number of slots, unless something has changed.
  std::vector<Slot> lost_among(const std::vector<Slot>& slots);
  bool is_lost(const Slot& slot) { return !lost_among({slot}).empty(); }

  /// The time without a heartbeat counts from now, or from `waited` ago.
  void begin_wait(std::chrono::milliseconds waited = {});

  void declare_lost(const Slot& slot);

 private:
  using Clock = std::chrono::steady_clock;
  struct Process {
    std::string host;
    int pid = 0;
    uint64_t started = 0;
  };
  struct HeartbeatSample {
    std::optional<uint64_t> beat;
    Clock::time_point sampled;
    std::chrono::milliseconds silent{};
  };

  const Process& process_of(const Slot& slot);
  bool has_ended_here(const Slot& slot);
  bool is_declared_lost(const Slot& slot, int64_t changes);
  bool has_no_heartbeat(const Slot& slot);

  Store store_;  // with PeerWatch's heartbeats
  Store table_;
  std::chrono::milliseconds timeout_;
  Slot own_;
  std::string host_;
  std::map<Slot, Process> processes_;
  std::set<Slot> lost_;
  std::map<Slot, int64_t> asked_;  // how many changes there were when the store was asked
  std::map<Slot, HeartbeatSample> samples_;
  Clock::time_point wait_began_;
  std::chrono::milliseconds waited_{};
};

}  // namespace fleet::comm
