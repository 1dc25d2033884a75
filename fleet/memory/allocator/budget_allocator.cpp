// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/allocator/budget_allocator.h"

#include <pthread.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "fleet/core/error.h"
#include "fleet/core/text/byte_size.h"
#include "fleet/core/text/format.h"
#include "fleet/memory/allocator/block_cache.h"

namespace fleet::memory {
namespace {

using Tag = MemoryCounter::Tag;

constexpr int64_t kAlignment = 64;
constexpr int64_t kBigBlock = int64_t{32} * 1024;  // from here on whole pages from the cache

bool is_page_start(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % BlockCache::kPage == 0;
}

/// Lies right before the data of a small block. Small blocks never begin at a page, big ones
/// always do.
struct alignas(kAlignment) Header {
  static constexpr uint64_t kMark = 0xF1EE7B10C4A110C8;
  uint64_t mark;
  Header* self;  // with the mark: no other memory looks like this
  void* base;
  int64_t bytes;
  Tag* tag;
};
static_assert(sizeof(Header) == kAlignment);

/// The header of a small block, null when `data` comes from another allocator. What lies before
/// foreign data is on the same page, so reading it is harmless, but a sanitizer cannot know that.
__attribute__((no_sanitize("address", "thread"))) Header* header_of(void* data) {
  if (reinterpret_cast<uintptr_t>(data) % kAlignment != 0) return nullptr;
  auto* header = static_cast<Header*>(data) - 1;
  return header->mark == Header::kMark && header->self == header ? header : nullptr;
}

void report_to_profiler(void* data, int64_t bytes, int64_t live, int64_t reserved,
                        c10::DeviceType device) {
  if (!c10::memoryProfilingEnabled()) return;
  c10::reportMemoryUsageToProfiler(data, bytes, static_cast<size_t>(live),
                                   static_cast<size_t>(reserved), c10::Device(device));
}

}  // namespace

/// Stays installed while it is off as long as blocks of its own are alive, and forwards to the
/// allocator before it: LibTorch (oneDNN) frees raw memory through the allocator that is installed
/// at that time, so it must accept blocks of the other, and the other would not accept its own.
struct BudgetAllocator::Cpu final : c10::Allocator {
  static Cpu& self() {
    static auto* one = new Cpu;  // tensors may outlive every static object
    return *one;
  }

  Cpu() {
    pthread_atfork([] { self().cache.before_fork(); }, [] { self().cache.after_fork(); },
                   [] { self().cache.after_fork(); });
  }

  c10::DataPtr allocate(size_t size) override {
    if (!on.load(std::memory_order_relaxed)) return before->allocate(size);
    const c10::Device device(c10::DeviceType::CPU);
    if (size == 0) return {nullptr, nullptr, &free_block, device};
    void* data =
        counted_bytes(size) < kBigBlock ? small(counted_bytes(size)) : big(counted_bytes(size));
    auto& all = BudgetAllocator::cpu();
    report_to_profiler(data, counted_bytes(size), all.counter_.live(), all.reserved(),
                       device.type());
    return {data, data, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static void* small(int64_t bytes) {
    auto& counter = BudgetAllocator::cpu().counter_;
    Tag& tag = counter.add(bytes);
    void* base = nullptr;
    if (posix_memalign(&base, kAlignment, static_cast<size_t>(bytes) + 2 * kAlignment) != 0)
      throw_out_of_memory(bytes, tag);
    char* data = static_cast<char*>(base) + kAlignment;
    if (is_page_start(data)) data += kAlignment;
    auto* header = reinterpret_cast<Header*>(data) - 1;
    new (header) Header{Header::kMark, header, base, bytes, &tag};
    return data;
  }

  static void* big(int64_t bytes) {
    auto& counter = BudgetAllocator::cpu().counter_;
    auto& cache = self().cache;
    counter.evict_for(bytes);
    auto pages = cache.grab(static_cast<size_t>(bytes));
    Tag* tag = nullptr;
    try {
      tag = &counter.add(bytes);
    } catch (...) {
      cache.give_back(std::move(pages));
      counter.make_room(0);
      throw;
    }
    void* data = cache.build(std::move(pages), bytes, tag);
    if (data == nullptr) throw_out_of_memory(bytes, *tag);
    return data;
  }

  [[noreturn]] static void throw_out_of_memory(int64_t bytes, Tag& tag) {
    auto& counter = BudgetAllocator::cpu().counter_;
    counter.remove(bytes, tag);
    TORCH_CHECK_WITH(
        OutOfMemoryError, false,
        format("[memory] the system has no {} left for a tensor, with {} live\n  fix: raise the "
               "process's limit (ulimit -v, its control group), or use a smaller model or "
               "micro-batch, or a memory budget",
               byte_size_text(bytes), byte_size_text(counter.live())));
  }

  static void free_block(void* data) {
    if (data == nullptr) return;
    auto& counter = BudgetAllocator::cpu().counter_;
    int64_t bytes = 0;
    if (is_page_start(data)) {
      auto& cache = self().cache;
      auto block = cache.remove(data);
      if (block == nullptr) return free_foreign(data);
      bytes = block->asked;
      counter.remove(bytes, *static_cast<Tag*>(block->tag));
      if (counter.make_room(static_cast<int64_t>(block->bytes)))
        cache.put(std::move(block));
      else
        cache.unmap(std::move(block));
    } else {
      Header* header = header_of(data);
      if (header == nullptr) return free_foreign(data);
      bytes = header->bytes;
      counter.remove(bytes, *header->tag);
      header->mark = 0;
      std::free(header->base);
    }
    report_to_profiler(data, -bytes, counter.live(), BudgetAllocator::cpu().reserved(),
                       c10::DeviceType::CPU);
    self().uninstall_when_unused();
  }

  void uninstall_when_unused() const {
    if (on.load(std::memory_order_relaxed)) return;
    if (BudgetAllocator::cpu().counter_.live_blocks() > 0) return;
    if (c10::GetCPUAllocator() == this) c10::SetCPUAllocator(before);
  }

  static void free_foreign(void* data) {
    if (const auto deleter = self().before->raw_deleter()) deleter(data);
  }

  std::atomic<bool> on{false};
  c10::Allocator* before = nullptr;
  BlockCache cache;
};

struct BudgetAllocator::Meta final : c10::Allocator {
  struct Record {
    int64_t bytes;
    Tag& tag;
  };

  static Meta& self() {
    static auto* one = new Meta;
    return *one;
  }

  c10::DataPtr allocate(size_t size) override {
    const c10::Device device(c10::DeviceType::Meta);
    if (size == 0) return {nullptr, nullptr, &free_record, device};
    const int64_t bytes = counted_bytes(size);
    Tag& tag = BudgetAllocator::meta().counter_.add(bytes);
    return {nullptr, new Record{bytes, tag}, &free_record, device};
  }
  void copy_data(void*, const void*, size_t) const override {}

  static void free_record(void* context) {
    const std::unique_ptr<Record> record(static_cast<Record*>(context));
    if (record) BudgetAllocator::meta().counter_.remove(record->bytes, record->tag);
  }

  c10::Allocator* before = nullptr;
};

BudgetAllocator::BudgetAllocator(Kind kind)
    : kind_(kind), counter_(kind == Kind::kCpu ? "CPU" : "meta") {
  if (kind == Kind::kCpu)
    counter_.set_cache(&Cpu::self().cache.cached(),
                       [](int64_t bytes) { Cpu::self().cache.shrink(bytes); });
}

BudgetAllocator& BudgetAllocator::cpu() {
  static auto* one = new BudgetAllocator(Kind::kCpu);
  return *one;
}

BudgetAllocator& BudgetAllocator::meta() {
  static auto* one = new BudgetAllocator(Kind::kMeta);
  return *one;
}

bool BudgetAllocator::is_on() const {
  if (kind_ == Kind::kMeta) return c10::GetAllocator(c10::DeviceType::Meta) == &Meta::self();
  return Cpu::self().on && c10::GetCPUAllocator() == &Cpu::self();
}

void BudgetAllocator::switch_on() {
  if (is_on()) return;
  if (kind_ == Kind::kMeta) {
    Meta::self().before = c10::GetAllocator(c10::DeviceType::Meta);
    c10::SetAllocator(c10::DeviceType::Meta, &Meta::self());
  } else {
    auto& mine = Cpu::self();
    if (c10::GetCPUAllocator() != &mine) {
      mine.before = c10::GetCPUAllocator();
      c10::SetCPUAllocator(&mine);
    }
    mine.on = true;
  }
  if (!is_on())
    throw Error("memory", "another allocator of higher priority is installed for tensors",
                "install no other allocator, or train without a memory budget");
}

void BudgetAllocator::switch_off() {
  if (!is_on()) return;
  if (kind_ == Kind::kMeta) {
    c10::SetAllocator(c10::DeviceType::Meta, Meta::self().before);
  } else {
    Cpu::self().on = false;
    Cpu::self().uninstall_when_unused();
  }
}

bool BudgetAllocator::has_made(const c10::DataPtr& data) const {
  return data.get_deleter() == (kind_ == Kind::kCpu ? &Cpu::free_block : &Meta::free_record);
}

void BudgetAllocator::enter_scope() {
  const std::lock_guard lock(scopes_mutex_);
  if (scopes_ == 0) was_on_ = is_on();
  switch_on();
  ++scopes_;
}

void BudgetAllocator::leave_scope() {
  const std::lock_guard lock(scopes_mutex_);
  if (--scopes_ == 0 && !was_on_) switch_off();
}

int64_t BudgetAllocator::reserved() const {
  return counter_.live() + (kind_ == Kind::kCpu ? Cpu::self().cache.cached().load() : 0);
}

void BudgetAllocator::trim() {
  if (kind_ == Kind::kCpu) Cpu::self().cache.trim();
}

}  // namespace fleet::memory
