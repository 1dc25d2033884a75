// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/offload_file.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/offload/direct_file.h"
#include "fleet/memory/offload/extent_list.h"

namespace fleet::memory {
namespace {

using Clock = std::chrono::steady_clock;

double cpu_seconds_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

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

struct OffloadFile::Core {
  using Entry = Ticket::Entry;
  using State = Entry::State;

  explicit Core(const OffloadOptions& options)
      : file(options.directory, options.buffer_bytes,
             options.page_cache ? DirectFile::Way::kPageCache : DirectFile::Way::kDirect),
        extents(options.max_file_bytes / DirectFile::kBlock * DirectFile::kBlock) {}

  void run();
  void write_entry(const std::shared_ptr<Entry>& entry);
  void read_entry(const std::shared_ptr<Entry>& entry);
  void give_extent(Entry& entry);
  bool forward(Entry& entry);
  void wait_until_written(const Entry& entry, std::unique_lock<std::mutex>& lock);
  void hold(Entry& entry, torch::Tensor tensor);
  torch::Tensor release(Entry& entry);
  void unqueue(const Entry& entry);

  const pid_t process = getpid();
  DirectFile file;  // its bytes move on the I/O thread only

  mutable std::mutex mutex;
  std::condition_variable work;     // for the I/O thread
  std::condition_variable changed;  // for waiting callers
  ExtentList extents;
  std::deque<std::shared_ptr<Entry>> writes, reads;
  OffloadStatistics statistics;
  std::exception_ptr write_error;  // for `drain`
  bool stopping = false;
  std::function<void()> write_delay;
  std::atomic<bool> interrupted{false};  // the entry being moved is not wanted any more
  std::thread thread;
};

/// The files of this process.
class OffloadFile::Cores {
 public:
  static Cores& get() {
    static auto* const cores = new Cores();
    return *cores;
  }

  void add(const std::shared_ptr<Core>& core) {
    std::lock_guard lock(mutex_);
    std::erase_if(cores_, [](const auto& entry) { return entry.expired(); });
    cores_.push_back(core);
  }

  std::vector<std::shared_ptr<Core>> all() {
    std::vector<std::shared_ptr<Core>> living;
    std::lock_guard lock(mutex_);
    for (const auto& entry : cores_) {
      auto core = entry.lock();
      if (core && core->process == getpid()) living.push_back(std::move(core));
    }
    return living;
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Core>> cores_;
};

void OffloadFile::Core::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    work.wait(lock, [&] { return stopping || !reads.empty() || !writes.empty(); });
    if (stopping) return;
    auto& queue = reads.empty() ? writes : reads;  // a caller may be waiting for a read
    const auto entry = queue.front();
    queue.pop_front();
    const bool is_read = entry->state == State::kToRead;
    lock.unlock();
    if (is_read)
      read_entry(entry);
    else
      write_entry(entry);
    lock.lock();
  }
}

void OffloadFile::Core::write_entry(const std::shared_ptr<Entry>& entry) {
  torch::Tensor tensor;
  int64_t offset = -1;
  std::exception_ptr error;
  std::function<void()> delay;
  {
    std::lock_guard lock(mutex);
    if (stopping || entry->state != State::kToWrite) return;  // forwarded or dropped just now
    tensor = entry->tensor;
    entry->state = State::kWriting;
    entry->is_in_flight = true;
    interrupted = false;
    delay = write_delay;
    offset = extents.take(DirectFile::whole_blocks(entry->bytes)).value_or(-1);
    entry->offset = offset;
    if (offset < 0)
      error = std::make_exception_ptr(Error(
          "offload",
          format("a tensor of {} does not fit: {} of the file in {} are in use and it may "
                 "not grow",
                 byte_size_text(entry->bytes), byte_size_text(extents.used()), file.directory()),
          "raise max_file_bytes, or offload less"));
  }
  const auto start = Clock::now();
  if (!error) {
    try {
      if (delay) delay();
      file.write(static_cast<const char*>(tensor.const_data_ptr()), entry->bytes, offset,
                 interrupted);
    } catch (...) {
      error = std::current_exception();
    }
  }
  const double seconds = seconds_since(start);

  std::unique_lock lock(mutex);
  statistics.write_seconds += seconds;
  statistics.cpu_seconds = cpu_seconds_of_this_thread();
  torch::Tensor last;
  int64_t finished_bytes = 0;
  if (entry->state == State::kWriting) {
    last = release(*entry);
    finished_bytes = entry->bytes;
    entry->state = error ? State::kFailed : State::kOnDisk;
    entry->error = error;
    if (error) give_extent(*entry);
  } else {
    give_extent(*entry);  // forwarded or dropped meanwhile
  }
  lock.unlock();
  tensor.reset();
  last.reset();  // before the notification: callers wait for the memory
  lock.lock();
  entry->is_in_flight = false;
  if (finished_bytes > 0) {
    statistics.queued_bytes -= finished_bytes;
    if (error)
      write_error = error;
    else
      statistics.bytes_written += finished_bytes;
  }
  changed.notify_all();
}

void OffloadFile::Core::read_entry(const std::shared_ptr<Entry>& entry) {
  torch::Tensor tensor;
  int64_t offset = -1;
  {
    std::lock_guard lock(mutex);
    if (stopping || entry->state != State::kToRead) return;
    offset = entry->offset;
    tensor = entry->tensor;
    entry->state = State::kReading;
    entry->is_in_flight = true;
    interrupted = false;
  }
  const auto start = Clock::now();
  std::exception_ptr error;
  try {
    file.read(static_cast<char*>(tensor.mutable_data_ptr()), entry->bytes, offset, interrupted);
  } catch (...) {
    error = std::current_exception();
  }
  const double seconds = seconds_since(start);

  tensor.reset();      // from here on only the entry, then the caller, holds it
  torch::Tensor last;  // freed after the lock
  std::lock_guard lock(mutex);
  entry->is_in_flight = false;
  statistics.read_seconds += seconds;
  statistics.cpu_seconds = cpu_seconds_of_this_thread();
  if (entry->state == State::kReading) {
    if (error) {
      entry->error = error;
      entry->state = State::kFailed;
      last = release(*entry);
      give_extent(*entry);
    } else {
      statistics.bytes_read += entry->bytes;
      entry->state = State::kInMemory;
    }
  } else {
    give_extent(*entry);
  }
  changed.notify_all();
}

void OffloadFile::Core::give_extent(Entry& entry) {
  if (entry.offset >= 0) extents.give(entry.offset, DirectFile::whole_blocks(entry.bytes));
  entry.offset = -1;
}

/// True when the tensor is still in memory; it then stays there and is not written.
bool OffloadFile::Core::forward(Entry& entry) {
  if (entry.state == State::kToWrite)
    unqueue(entry);
  else if (entry.state == State::kWriting)
    interrupted = true;  // write_entry gives the extent back
  else
    return entry.state == State::kForwarded;
  entry.state = State::kForwarded;
  ++statistics.forwarded;
  statistics.queued_bytes -= entry.bytes;
  changed.notify_all();
  return true;
}

/// The I/O thread releases a tensor at the end of a block: until then its memory is not free.
void OffloadFile::Core::wait_until_written(const Entry& entry, std::unique_lock<std::mutex>& lock) {
  if (!entry.is_in_flight) return;
  const auto start = Clock::now();
  changed.wait(lock, [&] { return !entry.is_in_flight; });
  statistics.stall_seconds += seconds_since(start);
}

void OffloadFile::Core::hold(Entry& entry, torch::Tensor tensor) {
  entry.tensor = std::move(tensor);
  statistics.memory_bytes += entry.bytes;
}

torch::Tensor OffloadFile::Core::release(Entry& entry) {
  if (entry.tensor.defined()) statistics.memory_bytes -= entry.bytes;
  return std::exchange(entry.tensor, {});
}

void OffloadFile::Core::unqueue(const Entry& entry) {
  const auto is_entry = [&](const std::shared_ptr<Entry>& one) { return one.get() == &entry; };
  std::erase_if(writes, is_entry);
  std::erase_if(reads, is_entry);
}

OffloadFile::Ticket::Ticket(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}
OffloadFile::Ticket::Ticket(Ticket&&) noexcept = default;
OffloadFile::Ticket::~Ticket() { drop(); }

OffloadFile::Ticket& OffloadFile::Ticket::operator=(Ticket&& other) noexcept {
  if (this == &other) return *this;
  drop();
  entry_ = std::move(other.entry_);
  return *this;
}

void OffloadFile::Ticket::drop() noexcept {
  if (entry_ == nullptr) return;
  const auto entry = std::move(entry_);
  auto& core = *entry->core;
  if (getpid() != core.process) return;  // a forked child has no I/O thread, nor its lock
  torch::Tensor garbage;
  std::unique_lock lock(core.mutex);
  using State = Entry::State;
  garbage = core.release(*entry);
  if (entry->state == State::kToWrite || entry->state == State::kWriting)
    core.statistics.queued_bytes -= entry->bytes;
  if (entry->state == State::kWriting || entry->state == State::kReading) {
    core.interrupted = true;  // the I/O thread gives the extent back
  } else if (entry->state != State::kForwarded) {
    // The I/O thread may still hold a forwarded entry.
    core.unqueue(*entry);
    core.give_extent(*entry);
  }
  entry->state = State::kDropped;
  core.changed.notify_all();
  core.wait_until_written(*entry, lock);
}

OffloadFile::OffloadFile(OffloadOptions options) : core_(std::make_shared<Core>(options)) {
  core_->thread = std::thread([core = core_.get()] {
    // Signals are for the program's own threads; one for a file that is too large becomes an error.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    core->run();
  });
  Cores::get().add(core_);
  BudgetAllocator::cpu().counter().set_waiter(&OffloadFile::wait_for_memory);
}

OffloadFile::~OffloadFile() {
  if (getpid() != core_->process) {
    // A forked child has no such thread, and its mutex may be locked for ever.
    core_->thread.detach();
    new std::shared_ptr<Core>(core_);
    return;
  }
  std::deque<std::shared_ptr<Ticket::Entry>> writes, reads;  // dropped after the lock
  {
    std::lock_guard lock(core_->mutex);
    core_->stopping = true;
    core_->interrupted = true;
    writes.swap(core_->writes);
    reads.swap(core_->reads);
    core_->work.notify_all();
  }
  core_->thread.join();
  std::lock_guard lock(core_->mutex);
  core_->changed.notify_all();
}

OffloadFile::Ticket OffloadFile::write(torch::Tensor tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != torch::kStrided)
    throw Error("offload",
                tensor.defined()
                    ? format("a tensor on {} cannot be offloaded", tensor.device().str())
                    : std::string("an undefined tensor cannot be offloaded"),
                "offload dense CPU tensors");
  tensor = tensor.detach();
  if (!tensor.is_non_overlapping_and_dense()) tensor = tensor.contiguous();
  if (tensor.is_conj()) tensor = tensor.resolve_conj();
  if (tensor.is_neg()) tensor = tensor.resolve_neg();
  auto entry = std::make_shared<Ticket::Entry>(core_);
  entry->bytes = static_cast<int64_t>(tensor.nbytes());
  entry->sizes = tensor.sizes().vec();
  entry->strides = tensor.strides().vec();
  entry->options = tensor.options();
  std::lock_guard lock(core_->mutex);
  core_->hold(*entry, std::move(tensor));
  if (entry->bytes == 0) {
    entry->state = Ticket::Entry::State::kForwarded;  // nothing to store
    return Ticket(std::move(entry));
  }
  core_->writes.push_back(entry);
  core_->statistics.queued_bytes += entry->bytes;
  core_->work.notify_one();
  return Ticket(std::move(entry));
}

void OffloadFile::prefetch(const Ticket& ticket) {
  using State = Ticket::Entry::State;
  FLEET_ASSERT(ticket.entry_ != nullptr && ticket.entry_->core == core_,
               "a ticket of this file is needed");
  auto& entry = *ticket.entry_;
  {
    std::lock_guard lock(core_->mutex);
    if (core_->forward(entry) || entry.state != State::kOnDisk) return;
  }
  torch::Tensor tensor;
  try {
    tensor = torch::empty_strided(entry.sizes, entry.strides, entry.options);
  } catch (const c10::OutOfMemoryError&) {
    return;
  }
  std::lock_guard lock(core_->mutex);
  if (entry.state != State::kOnDisk) return;
  core_->hold(entry, std::move(tensor));
  entry.state = State::kToRead;
  core_->reads.push_back(ticket.entry_);
  core_->work.notify_one();
}

torch::Tensor OffloadFile::read(const Ticket& ticket) {
  using State = Ticket::Entry::State;
  FLEET_ASSERT(ticket.entry_ != nullptr && ticket.entry_->core == core_,
               "a ticket of this file is needed");
  auto& entry = *ticket.entry_;
  auto& reads = core_->reads;
  std::unique_lock lock(core_->mutex);
  for (;;) {
    if (core_->forward(entry)) {
      core_->wait_until_written(entry, lock);
      return entry.tensor;
    }
    if (entry.state == State::kFailed) std::rethrow_exception(entry.error);
    if (entry.state == State::kInMemory) {
      entry.state = State::kOnDisk;
      return core_->release(entry);
    }
    if (entry.state == State::kOnDisk) {
      lock.unlock();
      auto tensor = torch::empty_strided(entry.sizes, entry.strides, entry.options);
      lock.lock();
      if (entry.state != State::kOnDisk) continue;  // another thread was faster
      core_->hold(entry, std::move(tensor));
      entry.state = State::kToRead;
      reads.push_front(ticket.entry_);
      core_->work.notify_one();
    }
    if (const auto at = std::find(reads.begin(), reads.end(), ticket.entry_); at != reads.end())
      std::rotate(reads.begin(), at, at + 1);  // before the prefetches
    const auto start = Clock::now();
    core_->changed.wait(
        lock, [&] { return entry.state != State::kToRead && entry.state != State::kReading; });
    core_->statistics.stall_seconds += seconds_since(start);
  }
}

void OffloadFile::drain(int64_t queued_bytes) {
  std::unique_lock lock(core_->mutex);
  const auto start = Clock::now();
  core_->changed.wait(lock, [&] {
    return core_->statistics.queued_bytes <= queued_bytes || core_->write_error != nullptr;
  });
  core_->statistics.stall_seconds += seconds_since(start);
  if (const auto error = std::exchange(core_->write_error, nullptr)) std::rethrow_exception(error);
}

OffloadStatistics OffloadFile::statistics() const {
  std::lock_guard lock(core_->mutex);
  auto now = core_->statistics;
  now.extent_bytes = core_->extents.used();
  now.file_bytes = core_->extents.end();
  return now;
}

OffloadFile::Speed OffloadFile::measure(int64_t bytes) {
  const AllocationTag tag(allocation::kDiskMeasurement);
  constexpr int64_t kBlocks = 16;
  const auto before = statistics();
  {
    // All are allocated before the first is written, so that reads find mapped pages too: in
    // training the cache has them.
    std::vector<torch::Tensor> blocks;
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(torch::full(bytes / kBlocks, i, torch::kByte));
    }
    std::vector<Ticket> tickets;
    for (auto& block : blocks) tickets.push_back(write(std::move(block)));
    drain();
    for (const auto& ticket : tickets) prefetch(ticket);
    for (const auto& ticket : tickets) read(ticket);
  }
  const auto after = statistics();
  const double write_seconds = after.write_seconds - before.write_seconds;
  const double read_seconds = after.read_seconds - before.read_seconds;
  const auto speed = [](int64_t moved, double seconds) {
    return static_cast<double>(moved) / std::max(seconds, 1e-9);
  };
  return {.write = speed(after.bytes_written - before.bytes_written, write_seconds),
          .read = speed(after.bytes_read - before.bytes_read, read_seconds),
          .compute_share = std::min((after.cpu_seconds - before.cpu_seconds) /
                                        std::max(write_seconds + read_seconds, 1e-9),
                                    1.0)};
}

bool OffloadFile::wait_for_memory() {
  for (const auto& core : Cores::get().all()) {
    std::unique_lock lock(core->mutex);
    if (core->thread.get_id() == std::this_thread::get_id()) return false;
    const auto before = core->statistics.queued_bytes;
    if (before == 0 || core->stopping) continue;
    const auto start = Clock::now();
    core->changed.wait(lock,
                       [&] { return core->statistics.queued_bytes < before || core->stopping; });
    core->statistics.stall_seconds += seconds_since(start);
    return true;
  }
  return false;
}

void OffloadFile::set_write_delay(std::function<void()> delay) {
  std::lock_guard lock(core_->mutex);
  core_->write_delay = std::move(delay);
}

int OffloadFile::descriptor() const { return core_->file.descriptor(); }

}  // namespace fleet::memory
