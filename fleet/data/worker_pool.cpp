// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/worker_pool.h"

#include <utility>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

WorkerPool::WorkerPool(int64_t threads) {
  FLEET_ASSERT(threads >= 1, format("{} threads", threads));
  for (int64_t worker = 1; worker < threads; ++worker) {
    helpers_.emplace_back([this, worker] { run_worker(worker); });
  }
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

void WorkerPool::run(int64_t count, const Work& work) {
  std::lock_guard alone(one_run_);
  std::unique_lock lock(mutex_);
  work_ = &work;
  next_ = done_ = 0;
  count_ = count;
  if (count > 1) wake_.notify_all();
  take_items(0, lock);
  finished_.wait(lock, [this] { return done_ == count_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void WorkerPool::run_worker(int64_t worker) {
  const AllocationTag tag(allocation::kData);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopped_ || next_ < count_; });
    if (stopped_) return;
    take_items(worker, lock);
  }
}

void WorkerPool::take_items(int64_t worker, std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const int64_t item = next_++;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      (*work_)(worker, item);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (thrown && (!failure_ || item < failed_item_)) {
      failure_ = thrown;
      failed_item_ = item;
    }
    if (++done_ == count_) finished_.notify_one();
  }
}

}  // namespace fleet
