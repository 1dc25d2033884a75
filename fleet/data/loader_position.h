#pragma once

#include <cstdint>
#include <optional>

#include "fleet/data/sharded_sampler.h"

namespace fleet {

struct LoaderOptions {
  int64_t batch_size = 1;  ///< samples per update on one rank
  int64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;            ///< leave out the samples that do not fill a global batch
  std::optional<int64_t> rank = {};  ///< unset, with world_size: of fleet::init (shard.h)
  std::optional<int64_t> world_size = {};  ///< 1 alone: every rank takes all samples
  int64_t prefetch = 2;  ///< batches made ahead in a background thread; 0: made when asked for
};

/// Where a DataLoader is, whatever its batches are.
///
/// The sampler stands behind the batch that was handed out last, never behind one that was only
/// prefetched. A restored position counts until a loop starts from it.
class LoaderPosition {
 public:
  LoaderPosition(int64_t samples, int64_t fingerprint, const LoaderOptions& options);

  /// Moves to `epoch` and returns the update at which a loop over it starts: the first, or the one
  /// that was restored. Another epoch than the restored one is an Error.
  int64_t start(int64_t epoch);
  /// Moves on in the epoch that it is in; returns where that is.
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
