// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/thread_stop.h"

namespace fleet::comm {

void join_or_detach(std::thread& thread, ThreadStop& stop, std::chrono::milliseconds limit) {
  if (!thread.joinable()) return;
  std::unique_lock lock(stop.mutex);
  stop.stop = true;
  stop.wake.notify_all();
  const bool ended = stop.wake.wait_for(lock, limit, [&] { return stop.ended; });
  lock.unlock();
  if (ended) {
    thread.join();
  } else {
    thread.detach();
  }
}

}  // namespace fleet::comm
