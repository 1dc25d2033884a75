#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace fleet::comm {

/// How a thread is told to end, and tells that it has.
struct Ending {
  std::mutex mutex;  // guards what follows
  std::condition_variable wake;
  bool stop = false;
  bool ended = false;
};

/// Ends a thread that shares `ending`; one that hangs in a call to a store or a peer that cannot be
/// reached is let go after half a second, and must own what it uses.
void end_or_let_go(std::thread& thread, Ending& ending);

}  // namespace fleet::comm
