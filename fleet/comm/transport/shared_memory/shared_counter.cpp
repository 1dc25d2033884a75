// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/shared_memory/shared_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fleet::comm {

// Sequentially consistent, here and in `sleep`: either the sleeper sees the new value, or this
// process sees the sleeper.
void SharedCounter::advance_to(uint32_t number) {
  value.store(number, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) wake();
}

void SharedCounter::sleep(uint32_t seen, std::chrono::nanoseconds time) {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const timespec limit{time.count() / 1'000'000'000, time.count() % 1'000'000'000};
  // The kernel compares the value once more, under a lock that `wake` takes too.
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAIT, seen, &limit, nullptr, 0);
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void SharedCounter::wake() {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
            0);
}

}  // namespace fleet::comm
