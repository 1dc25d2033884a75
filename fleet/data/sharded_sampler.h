// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fleet/core/options/options.h"
#include "fleet/data/shard.h"

namespace fleet {

/// How samples are shuffled and sharded over ranks.
struct SamplerOptions {
  int64_t batch_size = 1;  ///< samples per update on one rank
  int64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;            ///< leave out the samples that do not fill a global batch
  std::optional<int64_t> rank = {};  ///< unset, with world_size: of fleet::init (shard.h)
  std::optional<int64_t> world_size = {};  ///< 1 alone: every rank takes all samples
  int64_t fingerprint = 0;                 ///< of the samples (dataset.h)
};

/// A position between two updates, with the data and batch it is valid for; part of a snapshot.
/// Equal on all ranks.
struct SamplerState {
  int64_t seed = 0;
  int64_t epoch = 0;
  int64_t next_update = 0;
  int64_t dataset_size = 0;
  int64_t global_batch = 0;  ///< batch_size x world_size
  bool shuffle = true;
  bool drop_last = false;
  int64_t fingerprint = 0;  ///< of the samples

  bool operator==(const SamplerState&) const = default;
};
const FieldList& fields_of(const SamplerState*);

/// The same position for another global batch, with a warning: as many samples into the epoch,
/// rounded down to a batch; a few samples are repeated, none is left out.
SamplerState in_batches_of(SamplerState state, int64_t global_batch);

/// Which samples a rank takes in which update.
///
/// One order of all samples per epoch, drawn from (seed, epoch) alone; update u takes the next
/// batch_size x world_size of it, and the ranks split that. So N ranks see the batches of one rank
/// with N times the batch size, and every sample is used once per epoch. The
/// last, short global batch is split as evenly as possible: a rank may get
/// an empty batch, but all ranks make the same number of updates.
///
/// The sampler is a cursor that continues into the next epoch. Its state may be restored with
/// another number of ranks, as long as the global batch stays the same.
///
///   ShardedSampler sampler(60000, {.batch_size = 64, .seed = 1});   // this rank of fleet::init's
///   auto first = sampler.next();
///   auto saved = sampler.state();   // ... later, in a new process:
///   sampler.restore(saved);         // resumes with the second update
class ShardedSampler {
 public:
  ShardedSampler(int64_t dataset_size, const SamplerOptions& options);

  /// The same on every rank.
  int64_t updates_per_epoch() const { return updates_per_epoch_; }

  /// This rank's samples of the next update. The first call in an epoch draws the epoch's order.
  std::vector<int64_t> next();

  /// Moves before `update` of `epoch`; update == updates_per_epoch() is the next epoch's start.
  void seek(int64_t epoch, int64_t update = 0);

  SamplerState state() const;

  /// Moves to a saved position; an Error for other data, another seed or global batch: the next
  /// sample would be another one.
  void restore(const SamplerState& state);

 private:
  void draw_order();

  int64_t dataset_size_;
  SamplerOptions options_;
  Shard shard_;
  int64_t global_batch_ = 0;
  int64_t updates_per_epoch_ = 0;
  int64_t epoch_ = 0;
  int64_t next_update_ = 0;
  std::vector<int64_t> order_;  // of `order_epoch_`; empty until needed
  int64_t order_epoch_ = -1;
};

}  // namespace fleet
