// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace fleet::comm {

/// The stop request to a thread, and the thread's report that it has ended.
struct ThreadStop {
  std::mutex mutex;  // guards what follows
  std::condition_variable wake;
  bool stop = false;
  bool ended = false;
};

/// Requests the end of a thread that shares `stop` and joins it. A thread that does not end within
/// `limit`, because it blocks in a call to a store or a peer that cannot be reached, is detached:
/// it must own everything that it uses.
void join_or_detach(std::thread& thread, ThreadStop& stop,
                    std::chrono::milliseconds limit = std::chrono::milliseconds(500));

}  // namespace fleet::comm
