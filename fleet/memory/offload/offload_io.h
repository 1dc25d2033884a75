// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fleet/memory/offload/direct_file.h"
#include "fleet/memory/offload/extent_list.h"
#include "fleet/memory/offload/offload_file.h"

namespace fleet::memory {

/// Guarded by the mutex of the core, except for the I/O thread's own reference to the tensor while
/// it moves bytes.
struct OffloadFile::Ticket::Entry {
  enum class State {
    kToWrite,    // queued; `tensor` is the caller's
    kWriting,    // by the I/O thread
    kOnDisk,     // `tensor` is empty
    kToRead,     // queued; `tensor` is fresh memory
    kReading,    // by the I/O thread
    kInMemory,   // `tensor` was prefetched
    kForwarded,  // `tensor` is the caller's; nothing on disk
    kFailed,     // see `error`
    kDropped,    // no ticket any more; the I/O thread cleans up
  };

  explicit Entry(std::shared_ptr<Core> core) : core(std::move(core)) {}

  std::shared_ptr<Core> core;
  State state = State::kToWrite;
  torch::Tensor tensor;
  std::exception_ptr error;
  bool is_in_flight = false;  // the I/O thread holds the tensor too
  int64_t offset = -1;        // of its extent, -1 = none
  int64_t bytes = 0;
  std::vector<int64_t> sizes, strides;
  torch::TensorOptions options;
};

/// The queues of a file and its I/O thread, which moves one entry at a time, reads first.
///
/// All is guarded by `mutex`, but for `file` and `interrupted`. The thread lives as long as the
/// OffloadFile; entries may outlive it.
struct OffloadFile::Core {
  using Entry = Ticket::Entry;
  using State = Entry::State;

  explicit Core(const OffloadOptions& options);

  /// The I/O thread: until `stopping`.
  void run();
  void write_entry(const std::shared_ptr<Entry>& entry);
  void read_entry(const std::shared_ptr<Entry>& entry);
  void free_extent(Entry& entry);
  /// True when the tensor is still in memory; it then stays there and is not written.
  bool forward(Entry& entry);
  /// The I/O thread releases a tensor at the end of a block: until then its memory is not free.
  void wait_until_written(const Entry& entry, std::unique_lock<std::mutex>& lock);
  /// The entry's tensor, counted in `memory_bytes`.
  void hold(Entry& entry, torch::Tensor tensor);
  torch::Tensor release(Entry& entry);
  void unqueue(const Entry& entry);

  const int process;  // its id
  DirectFile file;    // its bytes move on the I/O thread only

  mutable std::mutex mutex;
  std::condition_variable work;     // for the I/O thread
  std::condition_variable changed;  // for waiting callers
  ExtentList extents;
  std::deque<std::shared_ptr<Entry>> writes, reads;
  OffloadStatistics statistics;
  std::exception_ptr write_error;  // for `drain`
  bool stopping = false;
  std::function<void()> write_delay, read_delay;
  std::atomic<bool> interrupted{false};  // the entry being moved is not wanted any more
  std::thread thread;
};

}  // namespace fleet::memory
