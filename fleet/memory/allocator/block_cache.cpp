// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/allocator/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "fleet/core/process/huge_page.h"

namespace fleet::memory {
namespace {

/// Shorter runs are not worth a mapping of their own (the system allows some 65,000).
constexpr size_t kSmallestPiece = size_t{64} * 1024;

/// Free blocks, rests among them, before neighbours are joined in any case.
constexpr size_t kManyBlocks = 1024;

size_t whole_pages(size_t bytes) {
  return (bytes + BlockCache::kPage - 1) / BlockCache::kPage * BlockCache::kPage;
}

char* map_pages(size_t bytes, char* at = nullptr) {
  void* address = mmap(at, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<char*>(address);
}

void unmap_pages(char* address, size_t bytes) {
  // Cutting a mapping in two can fail when there are too many; its pages can always be freed.
  if (bytes > 0 && munmap(address, bytes) != 0) madvise(address, bytes, MADV_DONTNEED);
}

/// Where a huge page fits in, at a border of huge pages, and the system is asked for them: a fault
/// brings 512 pages then, and a disk takes such a block in one go (twice as fast here, at a tenth
/// of the work for the CPU). The mapping ends with the block, so none reaches further.
char* map_block(size_t bytes) {
  if (bytes < kHugePage) return map_pages(bytes);
  char* const mapped = map_pages(bytes + kHugePage);
  if (mapped == nullptr) return map_pages(bytes);
  const size_t before = kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage;
  char* const block = mapped + before;
  unmap_pages(mapped, before);
  unmap_pages(block + bytes, kHugePage - before);
  (void)madvise(block, bytes, MADV_HUGEPAGE);  // where there are none, small ones will do
  return block;
}

}  // namespace

/// Cuts `block` down to `bytes` and returns the rest.
std::unique_ptr<BlockCache::Block> BlockCache::split(Block& block, size_t bytes) {
  auto rest = std::make_unique<Block>();
  rest->address = block.address + bytes;
  rest->bytes = block.bytes - bytes;
  rest->freed_at = block.freed_at;
  rest->is_cut = bytes == 0 && block.is_cut;
  std::vector<size_t> pieces;
  size_t passed = 0;
  for (const size_t piece : block.pieces) {
    const size_t mine = std::min(piece, bytes - std::min(bytes, passed));
    if (mine > 0) pieces.push_back(mine);
    if (mine < piece) rest->pieces.push_back(piece - mine);
    if (mine > 0 && mine < piece) rest->is_cut = true;
    passed += piece;
  }
  block.pieces = std::move(pieces);
  block.bytes = bytes;
  return rest;
}

std::unique_ptr<BlockCache::Block> BlockCache::take(std::map<size_t, Pages>::iterator of_size) {
  auto block = std::move(of_size->second.back());
  of_size->second.pop_back();
  cached_ -= static_cast<int64_t>(block->bytes);
  --free_blocks_;
  return block;
}

void BlockCache::keep(std::unique_ptr<Block> block) {
  cached_ += static_cast<int64_t>(block->bytes);
  ++free_blocks_;
  free_[block->bytes].push_back(std::move(block));
}

/// Only where it is needed: blocks of the sizes that a step asks for are best left as they are.
void BlockCache::join_neighbours() {
  Pages all;
  for (auto& [size, blocks] : free_) std::ranges::move(blocks, std::back_inserter(all));
  std::ranges::sort(all, {}, [](const auto& block) { return block->address; });
  Pages joined;
  for (auto& block : all) {
    if (joined.empty() || joined.back()->address + joined.back()->bytes != block->address) {
      joined.push_back(std::move(block));
      continue;
    }
    auto& before = *joined.back();
    auto next = block->pieces.begin();
    if (block->is_cut) before.pieces.back() += *next++;
    before.pieces.insert(before.pieces.end(), next, block->pieces.end());
    before.bytes += block->bytes;
    before.freed_at = std::max(before.freed_at, block->freed_at);
  }
  free_.clear();
  free_blocks_ = joined.size();
  for (auto& block : joined) free_[block->bytes].push_back(std::move(block));
}

BlockCache::Pages BlockCache::grab(size_t bytes) {
  const size_t wanted = whole_pages(bytes);
  Pages pages;
  std::lock_guard lock(mutex_);
  if (const auto exact = free_.find(wanted); exact != free_.end() && !exact->second.empty()) {
    pages.push_back(take(exact));
    pages.back()->is_as_freed = true;
    return pages;
  }
  std::erase_if(free_, [](const auto& of_size) { return of_size.second.empty(); });
  const bool may_fit = cached_ >= static_cast<int64_t>(wanted);
  const bool is_in_parts = may_fit && free_.lower_bound(wanted) == free_.end();
  if (is_in_parts || free_blocks_ > kManyBlocks) join_neighbours();
  size_t have = 0;
  while (have < wanted && !free_.empty()) {
    // The smallest that is enough, else the largest: few pieces, and little is broken up.
    auto of_size = free_.lower_bound(have == 0 ? wanted : std::max(wanted - have, kSmallestPiece));
    if (of_size == free_.end()) of_size = std::prev(of_size);
    if (of_size->first < std::min(wanted, kSmallestPiece)) break;
    auto block = take(of_size);
    if (of_size->second.empty()) free_.erase(of_size);
    if (block->bytes > wanted - have) keep(split(*block, wanted - have));
    have += block->bytes;
    pages.push_back(std::move(block));
  }
  return pages;
}

void BlockCache::give_back(Pages pages) {
  std::lock_guard lock(mutex_);
  for (auto& block : pages) {
    block->is_as_freed = false;
    keep(std::move(block));
  }
}

/// Moves the pieces of `pages` behind one another; the rest is fresh.
std::unique_ptr<BlockCache::Block> BlockCache::assemble(Pages pages, size_t bytes) {
  auto whole = std::make_unique<Block>();
  whole->bytes = bytes;
  whole->address = map_block(bytes);
  size_t filled = 0;
  bool lost = whole->address == nullptr;
  for (auto& part : pages) {
    char* from = part->address;
    for (const size_t piece : part->pieces) {
      char* to = whole->address + filled;
      const bool worth_it = !lost && piece >= kSmallestPiece;
      if (worth_it && mremap(from, piece, piece, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED) {
        whole->pieces.push_back(piece);
        filled += piece;
      } else {
        // A failed mremap may have left a hole at its target.
        if (worth_it && map_pages(piece, to) == nullptr) lost = true;
        unmap_pages(from, piece);
      }
      from += piece;
    }
  }
  if (lost) {
    if (whole->address != nullptr) unmap_pages(whole->address, bytes);
    return nullptr;
  }
  if (filled < bytes) whole->pieces.push_back(bytes - filled);
  return whole;
}

void* BlockCache::build(Pages pages, int64_t asked, void* tag) {
  const size_t wanted = whole_pages(static_cast<size_t>(asked));
  std::unique_ptr<Block> block;
  if (pages.size() == 1 && pages[0]->bytes == wanted)
    block = std::move(pages[0]);
  else
    block = assemble(std::move(pages), wanted);
  if (block == nullptr) {
    shrink(0);
    block = assemble({}, wanted);
    if (block == nullptr) return nullptr;
  }
  const bool is_as_freed = std::exchange(block->is_as_freed, false);
  block->asked = asked;
  block->tag = tag;
  void* data = block->address;
  std::lock_guard lock(mutex_);
  live_[data] = std::move(block);
  asked_.add(asked);
  pages_.add(static_cast<int64_t>(wanted));
  count_window(asked, !is_as_freed);
  return data;
}

// `has_changed`: what is cached, beside a block that serves a request of its size.
void BlockCache::count_window(int64_t bytes, bool has_changed) {
  window_allocated_ += bytes;
  shrink_locked(has_changed ? asked_.limit() : pages_.limit());
  if (window_allocated_ < kWindowPeaks * asked_.window_peak) return;
  asked_.begin_window();
  pages_.begin_window();
  window_allocated_ = 0;
}

std::unique_ptr<BlockCache::Block> BlockCache::remove(void* data) {
  std::lock_guard lock(mutex_);
  const auto found = live_.find(data);
  if (found == live_.end()) return nullptr;
  auto block = std::move(found->second);
  live_.erase(found);
  asked_.live -= block->asked;
  pages_.live -= static_cast<int64_t>(block->bytes);
  return block;
}

void BlockCache::put(std::unique_ptr<Block> block) {
  std::lock_guard lock(mutex_);
  block->freed_at = ++clock_;
  keep(std::move(block));
}

void BlockCache::before_fork() { mutex_.lock(); }
void BlockCache::after_fork() { mutex_.unlock(); }

void BlockCache::unmap(std::unique_ptr<Block> block) { unmap_pages(block->address, block->bytes); }

void BlockCache::shrink(int64_t bytes) {
  std::lock_guard lock(mutex_);
  shrink_locked(bytes);
}

void BlockCache::trim() {
  std::lock_guard lock(mutex_);
  shrink_locked(0);
  for (auto* use : {&asked_, &pages_}) {
    use->window_peak = use->live;
    use->previous_window_peak = 0;
  }
  window_allocated_ = 0;
}

void BlockCache::shrink_locked(int64_t bytes) {
  int64_t excess = cached_ - bytes;
  if (excess <= 0) return;
  std::vector<Block*> oldest;
  for (const auto& [size, blocks] : free_)
    for (const auto& block : blocks) oldest.push_back(block.get());
  std::sort(oldest.begin(), oldest.end(),
            [](const Block* a, const Block* b) { return a->freed_at < b->freed_at; });
  for (Block* block : oldest) {
    if (excess <= 0) break;
    if (static_cast<int64_t>(block->bytes) > excess) {
      // Its end is enough.
      auto& of_size = free_.at(block->bytes);
      const auto at = std::find_if(of_size.begin(), of_size.end(),
                                   [&](const auto& one) { return one.get() == block; });
      auto whole = std::move(*at);
      of_size.erase(at);
      --free_blocks_;
      cached_ -= static_cast<int64_t>(whole->bytes);
      auto end = split(*whole, whole->bytes - whole_pages(static_cast<size_t>(excess)));
      unmap_pages(end->address, end->bytes);
      if (whole->bytes > 0) keep(std::move(whole));
      break;
    }
    excess -= static_cast<int64_t>(block->bytes);
    --free_blocks_;
    cached_ -= static_cast<int64_t>(block->bytes);
    unmap_pages(block->address, block->bytes);
    auto& of_size = free_.at(block->bytes);
    std::erase_if(of_size, [&](const auto& one) { return one.get() == block; });
  }
  std::erase_if(free_, [](const auto& of_size) { return of_size.second.empty(); });
}

}  // namespace fleet::memory
