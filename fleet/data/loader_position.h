// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "fleet/data/sharded_sampler.h"

namespace fleet {

/// How a loader forms batches and shards them over ranks.
struct LoaderOptions {
  int64_t batch_size = 1;  ///< samples per update on one rank
  int64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;            ///< leave out the samples that do not fill a global batch
  std::optional<int64_t> rank = {};  ///< unset, with world_size: of fleet::init (shard.h)
  std::optional<int64_t> world_size = {};  ///< 1 alone: every rank takes all samples
  int64_t prefetch = 2;                    ///< batches loaded ahead in a background thread; 0: none
};

/// The position of a DataLoader, for any type of batch.
///
/// The sampler stands after the last yielded batch; prefetched ones do not count. A restored
/// position is kept until a loop starts from it.
class LoaderPosition {
 public:
  LoaderPosition(int64_t samples, int64_t fingerprint, const LoaderOptions& options);

  /// Moves to `epoch` and returns the update at which a loop over it starts: the first, or the one
  /// that was restored. Another epoch than the restored one is an Error.
  int64_t start(int64_t epoch);
  /// Continues in the current epoch; returns the position.
  SamplerState start_from_here();

  void seek(int64_t epoch, int64_t update) { sampler_.seek(epoch, update); }
  void restore(const SamplerState& state);
  SamplerState state() const { return sampler_.state(); }

  int64_t updates_per_epoch() const { return sampler_.updates_per_epoch(); }
  int64_t prefetch() const { return prefetch_; }
  /// A copy of the sampler that stands before `update` of `epoch`.
  ShardedSampler sampler_at(int64_t epoch, int64_t update) const;

 private:
  int64_t prefetch_;
  ShardedSampler sampler_;
  bool restored_ = false;  // and no loop has started from there
};

}  // namespace fleet
