// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace fleet::comm {

/// A counter in memory that several processes share: one of them advances it, others wait until it
/// has reached a number. All zeros is its initial state, so fresh shared memory holds valid ones.
///
/// Advancing costs a system call only while a process sleeps on it. A process that is killed in its
/// sleep leaves `sleepers` too high, which costs later advances that call, and nothing else.
struct SharedCounter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;

  /// It wraps around after 2^32; the difference of two neighbours stays correct.
  bool has_reached(uint32_t number) const {
    return static_cast<int32_t>(value.load(std::memory_order_acquire) - number) >= 0;
  }
  void advance_to(uint32_t number);
  /// Until the counter is no longer at `seen`, `wake` is called, or `time` has passed.
  void sleep(uint32_t seen, std::chrono::nanoseconds time);
  /// Ends every sleep: what the sleepers wait for may never happen.
  void wake();
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace fleet::comm
