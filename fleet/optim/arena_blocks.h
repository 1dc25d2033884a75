#pragma once

#include <functional>
#include <span>
#include <vector>

#include "fleet/core/parameter_arena.h"

namespace fleet::optim {

/// Do the kernels of fleet/ops take this group, or the engine's ops?
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

  /// Cuts the spans whose flag is set; cheap when the flags are those of the last call.
  void choose(const std::vector<bool>& used);

  size_t count() const { return blocks_.size(); }
  const Block& operator[](size_t index) const { return blocks_[index]; }

  /// Blocks [first, last) of one arena group.
  struct Batch {
    size_t first = 0;
    size_t last = 0;
  };
  Batch of_group(size_t group) const { return groups_[group]; }
  /// The same, in batches of whole spans that fit the shared cache together where they can: what a
  /// first pass has read is still there for the second.
  std::span<const Batch> cached_batches(size_t group) const { return batches_[group]; }

  /// Calls `work(index)` for the blocks of a batch, on all threads, each with a contiguous share of
  /// the elements.
  void for_each(const Batch& batch, const std::function<void(size_t)>& work) const;

 private:
  const ParameterArena& arena_;
  std::vector<bool> used_;
  std::vector<Block> blocks_;
  std::vector<int64_t> elements_before_;  // per block, and the total
  std::vector<Batch> groups_;
  std::vector<std::vector<Batch>> batches_;
};

}  // namespace fleet::optim
