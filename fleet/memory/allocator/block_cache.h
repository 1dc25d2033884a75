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
/// A freed block serves the next request of its size, or is cut for a smaller one. Where no block
/// is large enough, neighbours are joined again, and if that is not enough, a block is assembled
/// from the pages of others (mremap moves them without a copy, some 20 us for 16 MiB). So sizes
/// that vary from step to step reuse pages too.
///
/// Bound: after an allocation that no block of its size served, the cache and what live tensors
/// asked for are together no more than the most that they asked for at once, in the last two
/// windows or since `trim`. When that falls, the excess is returned to the system, least recently
/// used first. A block of the size asked for adds nothing to that, and each that is freed less than
/// a page, the rest of its last one: steps of equal sizes keep these rests, and fault no page. In
/// whole pages the bound holds after every allocation.
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
    bool is_cut = false;       // the first piece is the rest of the one before it
    bool is_as_freed = false;  // it serves a request of its size
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

  /// Empties it, and forgets what was live before.
  void trim();

  /// Holds the lock while the process forks, so that the child finds it free.
  void before_fork();
  void after_fork();

  /// Bytes in the cache.
  const std::atomic<int64_t>& cached() const { return cached_; }

 private:
  std::unique_ptr<Block> take(std::map<size_t, Pages>::iterator of_size);
  void keep(std::unique_ptr<Block> block);
  std::unique_ptr<Block> split(Block& block, size_t bytes);
  void join_neighbours();
  std::unique_ptr<Block> assemble(Pages pages, size_t bytes);
  void shrink_locked(int64_t bytes);
  void count_window(int64_t bytes, bool has_changed);

  std::mutex mutex_;
  std::unordered_map<void*, std::unique_ptr<Block>> live_;
  std::map<size_t, Pages> free_;  // by size, the last freed at the back
  size_t free_blocks_ = 0;
  std::atomic<int64_t> cached_{0};
  uint64_t clock_ = 0;

  // A window ends when so many times its peak has been allocated. A training step allocates four
  // times its peak, one that recomputes nearly everything fifty times. A window is longer than a
  // step, or phases with little memory would return pages that the next phase needs.
  static constexpr int64_t kWindowPeaks = 64;
  struct Use {
    int64_t live = 0, window_peak = 0, previous_window_peak = 0;
    void add(int64_t bytes) {
      live += bytes;
      if (live > window_peak) window_peak = live;
    }
    /// The most that may be cached.
    int64_t limit() const {
      return (window_peak > previous_window_peak ? window_peak : previous_window_peak) - live;
    }
    void begin_window() {
      previous_window_peak = window_peak;
      window_peak = live;
    }
  };
  Use asked_;  // by tensors
  Use pages_;  // for these
  int64_t window_allocated_ = 0;
};

}  // namespace fleet::memory
