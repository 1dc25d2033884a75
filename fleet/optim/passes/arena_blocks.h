// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "fleet/core/parameter_arena.h"

namespace fleet::optim {

/// Whether the kernels of fleet/ops update this group; else LibTorch's ops do.
bool is_fused(const ArenaGroup& group);

/// A run of one span; `begin` counts elements of the span's group.
struct Block {
  size_t span = 0;
  int64_t begin = 0;
  int64_t length = 0;
};

/// An arena cut into blocks of one parameter each, small enough for a core's cache. Blocks do not
/// depend on the number of threads, so neither do sums that are kept per block and added in order.
class ArenaBlocks {
 public:
  explicit ArenaBlocks(const ParameterArena& arena) : arena_(arena) {}

  /// Cuts the spans whose flag is set. False, at no cost, when the flags are those of the last
  /// call.
  bool choose(const std::vector<bool>& used);

  size_t count() const { return blocks_.size(); }
  const Block& operator[](size_t index) const { return blocks_[index]; }

  /// Blocks [first, last): those of one arena group.
  struct BlockRange {
    size_t first = 0;
    size_t last = 0;
  };
  BlockRange of_group(size_t group) const { return groups_[group]; }

  /// Calls `work(block)` for every block of a range, on all threads, each with a contiguous chunk
  /// of the elements.
  void for_each(const BlockRange& range, const std::function<void(size_t)>& work) const;

  /// What needs the whole of a span before it can continue: `measure(block)` for all blocks of a
  /// span, then `reduce(first, last)` with the span's blocks, then `apply(block)`. A span that lies
  /// within one thread's chunk is done by that thread, without waiting for others and while it is
  /// in its cache; only spans that cross a border between chunks take a second round. Very large
  /// ones are worked on by all threads together, so that one at a time lies in the shared cache.
  struct TwoPasses {
    std::function<void(size_t)> measure;
    std::function<void(size_t, size_t)> reduce;
    std::function<void(size_t)> apply;
  };
  void for_each(const BlockRange& range, const TwoPasses& work) const;

 private:
  std::vector<BlockRange> chunks_of(const BlockRange& range) const;
  void for_each_together(const BlockRange& range, const TwoPasses& work) const;
  BlockRange span_around(const BlockRange& range, size_t block) const;

  const ParameterArena& arena_;
  std::vector<bool> used_;
  std::vector<Block> blocks_;
  std::vector<int64_t> elements_before_;  // per block, and the total
  std::vector<BlockRange> groups_;
};

}  // namespace fleet::optim
