// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

#include "fleet/core/allocation_tag.h"

namespace fleet {

/// Calls `make` `count` times in order in a background thread, at most `ahead` results in advance;
/// with `ahead` 0, in `take` itself. One thread may take.
///
/// Under a memory budget the step that runs may leave too little for the next result. `make` is
/// then called once more, for the same result, when `take` waits for it: between two steps no
/// budget is in force.
///
///   Prefetcher<Batch> batches([&] { return dataset.get(sampler.next(), epoch); }, 100, 2);
///   for (int i = 0; i < 100; ++i) train_on(batches.take());
template <typename T>
class Prefetcher {
 public:
  Prefetcher(std::function<T()> make, int64_t count, int64_t ahead)
      : make_(std::move(make)), count_(count), ahead_(ahead) {
    if (ahead_ > 0) thread_ = std::thread([this] { run(); });
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  ~Prefetcher() {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    room_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  /// The next result; must not be called more than `count` times. What `make` threw is thrown here,
  /// after all earlier results.
  T take() {
    if (ahead_ == 0) {
      const AllocationTag tag(allocation::kData);
      return make_();
    }
    std::unique_lock lock(mutex_);
    is_awaited_ = queue_.empty();
    if (is_awaited_) room_.notify_one();
    filled_.wait(lock, [this] { return !queue_.empty() || failure_; });
    is_awaited_ = false;
    if (queue_.empty()) std::rethrow_exception(failure_);
    T result = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    room_.notify_one();
    return result;
  }

 private:
  void run() try {
    const AllocationTag tag(allocation::kData);
    for (int64_t made = 0; made < count_; ++made) {
      {
        std::unique_lock lock(mutex_);
        room_.wait(lock, [this] { return stopped_ || std::ssize(queue_) < ahead_; });
        if (stopped_) return;
      }
      auto result = make_next();
      if (!result) return;
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(*result));
      filled_.notify_one();
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    filled_.notify_one();
  }

  // Empty: nobody wants it any more.
  std::optional<T> make_next() {
    try {
      return make_();
    } catch (const c10::OutOfMemoryError&) {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [this] { return stopped_ || is_awaited_; });
      if (stopped_) return {};
    }
    return make_();
  }

  const std::function<T()> make_;
  const int64_t count_;
  const int64_t ahead_;

  std::mutex mutex_;  // guards the next four
  std::deque<T> queue_;
  std::exception_ptr failure_;
  bool stopped_ = false;
  bool is_awaited_ = false;  // `take` waits
  std::condition_variable filled_;
  std::condition_variable room_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace fleet
