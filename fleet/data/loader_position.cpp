// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/loader_position.h"

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

LoaderPosition::LoaderPosition(int64_t samples, int64_t fingerprint, const LoaderOptions& options)
    : prefetch_(options.prefetch),
      sampler_(samples, {.batch_size = options.batch_size,
                         .seed = options.seed,
                         .shuffle = options.shuffle,
                         .drop_last = options.drop_last,
                         .rank = options.rank,
                         .world_size = options.world_size,
                         .fingerprint = fingerprint}) {
  if (prefetch_ < 0) {
    throw UsageError("data", format("prefetch is {}, below 0", prefetch_),
                     "use 0 to make batches without a thread");
  }
}

int64_t LoaderPosition::start(int64_t epoch) {
  int64_t first_update = 0;
  if (restored_) {
    const auto restored = state();
    if (epoch != restored.epoch) {
      throw Error("data",
                  format("epoch {} was asked for, but the restored position is update {} of epoch "
                         "{}",
                         epoch, restored.next_update, restored.epoch),
                  "start the loop over epochs at loader.state().epoch");
    }
    first_update = restored.next_update;
    restored_ = false;
  }
  seek(epoch, first_update);
  return first_update;
}

SamplerState LoaderPosition::start_from_here() {
  restored_ = false;
  return state();
}

void LoaderPosition::restore(const SamplerState& state) {
  sampler_.restore(state);
  restored_ = true;
}

ShardedSampler LoaderPosition::sampler_at(int64_t epoch, int64_t update) const {
  auto sampler = sampler_;
  sampler.seek(epoch, update);
  return sampler;
}

}  // namespace fleet
