// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fleet {

/// A few threads that take the items of a list one after another, for work that takes a different
/// time on each, such as decoding images. Not LibTorch's intra-op threads: those are busy training.
///
///   WorkerPool pool(4);
///   pool.run(images.size(), [&](int64_t worker, int64_t item) { decode(scratch[worker], item); });
class WorkerPool {
 public:
  using Work = std::function<void(int64_t worker, int64_t item)>;

  /// The thread that calls `run` is one of the `threads`.
  explicit WorkerPool(int64_t threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int64_t threads() const { return static_cast<int64_t>(helpers_.size()) + 1; }

  /// Calls work(worker, item) for each item in [0, count), and returns when all are done. Rethrows
  /// what was thrown for the lowest item; the other items are processed all the same. Calls from
  /// several threads wait for each other, so that a worker's number is in use once at a time.
  void run(int64_t count, const Work& work);

 private:
  void run_worker(int64_t worker);
  void take_items(int64_t worker, std::unique_lock<std::mutex>& lock);

  std::mutex one_run_;
  std::mutex mutex_;  // guards all below but the threads
  std::condition_variable wake_;
  std::condition_variable finished_;
  const Work* work_ = nullptr;
  int64_t next_ = 0;
  int64_t count_ = 0;
  int64_t done_ = 0;
  int64_t failed_item_ = 0;
  std::exception_ptr failure_;
  bool stopped_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace fleet
