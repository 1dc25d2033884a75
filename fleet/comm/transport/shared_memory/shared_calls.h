// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "fleet/comm/transport/collective.h"
#include "fleet/comm/transport/shared_memory/peer_memory.h"
#include "fleet/comm/transport/shared_memory/shared_counter.h"

namespace fleet::comm {

/// Small collectives of the ranks of one machine, without a thread and without sockets. Each rank
/// writes its input into a slot of its own memory; when all have, each one reads all inputs and
/// computes the result for itself, in rank order, so all ranks hold the same bits.
///
/// Invariants. Calls are numbered from 1 in the order of `start`, the same on all ranks. Call n
/// uses slot n % kSlots of every rank, and a rank writes it only when all ranks have read call n -
/// kSlots. Calls complete in order. After the first failure every call fails.
///
/// States of a call: posted (its input is in the slot, when `start` returns) -> complete (its
/// result is in its tensors). Calls complete in `start`, `wait` and `is_complete`, in whichever
/// thread that is. `start` blocks only while kSlots earlier calls are under way. So ranks that
/// start their calls in one order, of this and other groups, never wait for each other in a circle,
/// in whichever order they wait for them.
///
/// Two ranks: a call of 1 KB takes a few microseconds, and no system call where the peer arrives
/// within some tens of microseconds.
class SharedCalls {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kSlotBytes = 128 << 10;

  /// The bytes of memory that it takes of each rank.
  static int64_t memory_bytes();
  SharedCalls(PeerMemory memory, int rank);
  ~SharedCalls();
  SharedCalls(const SharedCalls&) = delete;
  SharedCalls& operator=(const SharedCalls&) = delete;

  /// Whether it can carry a call out: on the CPU, and small enough for a slot.
  static bool accepts(const Collective& call);

  /// Starts a call; returns its number. The result is in the call's tensors when it is complete.
  /// What goes wrong is thrown by `wait`. `while_waiting` is called now and then.
  uint32_t start(Collective call, Clock::time_point deadline,
                 const std::function<void()>& while_waiting);
  /// Blocks until call `number` is complete; throws when a rank has ended, left after a failure or
  /// is at another call, and at the deadline.
  void wait(uint32_t number, Clock::time_point deadline,
            const std::function<void()>& while_waiting);
  bool is_complete(uint32_t number);

 private:
  struct Control;
  struct Slot;
  struct Missing {  // what the oldest call waits for
    SharedCounter* counter;
    int rank;
    uint32_t number;
  };

  Control& control(int rank) const;
  Slot& slot(int rank, uint32_t number) const;
  Missing advance();
  bool is_done(uint32_t number) const { return static_cast<int32_t>(completed_ - number) >= 0; }
  std::optional<Missing> find_missing(uint32_t number);
  std::optional<Missing> behind(SharedCounter Control::*which, uint32_t number) const;
  void post(const Collective& call, uint32_t number);
  void complete(const Collective& call, uint32_t number);
  void pause(const Missing& missing, Clock::time_point deadline);
  [[noreturn]] void fail(const std::string& reason);
  void leave();

  PeerMemory memory_;
  int rank_;
  int spins_;  // before a wait sleeps

  std::mutex mutex_;              // guards what follows
  std::deque<Collective> calls_;  // posted and not complete, from completed_ + 1
  uint32_t started_ = 0;
  uint32_t posted_ = 0;
  uint32_t completed_ = 0;
  std::string failure_;
};

}  // namespace fleet::comm
