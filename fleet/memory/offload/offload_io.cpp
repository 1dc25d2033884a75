// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/offload_io.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"

namespace fleet::memory {
namespace {

using Clock = std::chrono::steady_clock;

double cpu_seconds_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

OffloadFile::Core::Core(const OffloadOptions& options)
    : process(getpid()),
      file(options.directory, options.buffer_bytes,
           options.page_cache ? DirectFile::Mode::kPageCache : DirectFile::Mode::kDirect),
      extents(options.max_file_bytes / DirectFile::kBlock * DirectFile::kBlock) {}

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
    if (error) free_extent(*entry);
  } else {
    free_extent(*entry);  // forwarded or dropped meanwhile
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
  std::function<void()> delay;
  {
    std::lock_guard lock(mutex);
    if (stopping || entry->state != State::kToRead) return;
    delay = read_delay;
    offset = entry->offset;
    tensor = entry->tensor;
    entry->state = State::kReading;
    entry->is_in_flight = true;
    interrupted = false;
  }
  const auto start = Clock::now();
  std::exception_ptr error;
  try {
    if (delay) delay();
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
      free_extent(*entry);
    } else {
      statistics.bytes_read += entry->bytes;
      entry->state = State::kInMemory;
    }
  } else {
    free_extent(*entry);
  }
  changed.notify_all();
}

void OffloadFile::Core::free_extent(Entry& entry) {
  if (entry.offset >= 0) extents.give(entry.offset, DirectFile::whole_blocks(entry.bytes));
  entry.offset = -1;
}

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

}  // namespace fleet::memory
