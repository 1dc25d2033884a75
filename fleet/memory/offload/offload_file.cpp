// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/offload_file.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/seconds_since.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/budget_allocator.h"
#include "fleet/memory/offload/offload_io.h"

namespace fleet::memory {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

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
    core.free_extent(*entry);
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
          .compute_slowdown = std::min((after.cpu_seconds - before.cpu_seconds) /
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

void OffloadFile::set_read_delay(std::function<void()> delay) {
  std::lock_guard lock(core_->mutex);
  core_->read_delay = std::move(delay);
}

int OffloadFile::descriptor() const { return core_->file.descriptor(); }

}  // namespace fleet::memory
