// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace fleet::memory {

/// Whole pages for big tensors, kept between steps: a page fault costs microseconds, so a fresh
/// 16 MiB block takes longer to touch than most ops to run.
///
/// A freed block serves the next request of its size. A request without such a block is assembled
/// from the pages of other cached blocks (mremap moves them without a copy, some 20 us for 16 MiB),
/// so sizes that vary from step to step reuse pages too, and the cache never holds more than the
/// peak of what was live. When that peak falls, the excess is returned to the system, least
/// recently used first.
///
///   auto pages = cache.grab(bytes);                           // none, some, or all
///   void* data = cache.build(std::move(pages), bytes, tag);   // the rest comes from the system
///   cache.put(cache.remove(data));
class BlockCache {
 public:
  static constexpr size_t kPage = 4096;

  /// A run of pages at one address; `pieces` are the lengths that came from single mappings, which
  /// is as much as one mremap can move.
  struct Block {
    char* address = nullptr;
    size_t bytes = 0;
    std::vector<size_t> pieces;
    uint64_t freed_at = 0;
    int64_t asked = 0;    // of the tensor that lives in it
    void* tag = nullptr;  // a MemoryCounter::Tag
  };
  using Pages = std::vector<std::unique_ptr<Block>>;

  /// Pages for `bytes` from the cache, as many as it has, not more than needed.
  Pages grab(size_t bytes);

  /// Back into the cache, unchanged.
  void give_back(Pages pages);

  /// One block for `asked` bytes, from `pages` and the system; null if the system has none.
  void* build(Pages pages, int64_t asked, void* tag);

  /// Takes a live block out; null if `data` is not a block of this cache.
  std::unique_ptr<Block> remove(void* data);

  /// Into the cache, or to the system.
  void put(std::unique_ptr<Block> block);
  void unmap(std::unique_ptr<Block> block);

  /// Leaves at most `bytes` in the cache, the last used ones.
  void shrink(int64_t bytes);

  /// Holds the lock while the process forks, so that the child finds it free.
  void before_fork();
  void after_fork();

  /// Bytes in the cache.
  const std::atomic<int64_t>& cached() const { return cached_; }

 private:
  std::unique_ptr<Block> take(std::map<size_t, Pages>::iterator of_size);
  void keep(std::unique_ptr<Block> block);
  std::unique_ptr<Block> split(Block& block, size_t bytes);
  std::unique_ptr<Block> assemble(Pages pages, size_t bytes);
  void shrink_locked(int64_t bytes);
  void count_window(size_t bytes);

  std::mutex mutex_;
  std::unordered_map<void*, std::unique_ptr<Block>> live_;
  std::map<size_t, Pages> free_;  // by size, the last freed at the back
  std::atomic<int64_t> cached_{0};
  uint64_t clock_ = 0;

  // A window ends when so many times its peak has been allocated. A training step allocates four
  // times its peak, one that recomputes nearly everything fifty times. A window is longer than a
  // step, or phases with little memory would return pages that the next phase needs.
  static constexpr int64_t kWindowPeaks = 64;
  int64_t live_bytes_ = 0;
  int64_t window_allocated_ = 0;
  int64_t window_peak_ = 0;
  int64_t previous_window_peak_ = 0;
};

}  // namespace fleet::memory
