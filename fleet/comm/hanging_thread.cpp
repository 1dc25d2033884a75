#include "fleet/comm/hanging_thread.h"

#include <chrono>

namespace fleet::comm {

void end_or_let_go(std::thread& thread, Ending& ending) {
  constexpr auto kFarewell = std::chrono::milliseconds(500);
  if (!thread.joinable()) return;
  std::unique_lock lock(ending.mutex);
  ending.stop = true;
  ending.wake.notify_all();
  const bool ended = ending.wake.wait_for(lock, kFarewell, [&] { return ending.ended; });
  lock.unlock();
  if (ended) {
    thread.join();
  } else {
    thread.detach();
  }
}

}  // namespace fleet::comm
