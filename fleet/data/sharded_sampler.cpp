// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/sharded_sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"
#include "fleet/data/global_batch.h"
#include "fleet/data/position_differences.h"
#include "fleet/data/split_mix.h"

namespace fleet {

const FieldList& fields_of(const SamplerState*) {
  using S = SamplerState;
  static_assert(sizeof(S) == 7 * sizeof(int64_t), "every field belongs into the list");
  static const FieldList list{
      .area = "data",
      .fields = {
          field<&S::seed>("seed", "of the order"),
          field<&S::epoch>("epoch", "from 0").at_least(0),
          field<&S::next_update>("next_update", "of the epoch, from 0").at_least(0),
          field<&S::dataset_size>("dataset_size", "samples").at_least(0),
          field<&S::global_batch>("global_batch", "samples per update on all ranks").at_least(0),
          field<&S::shuffle>("shuffle", "another order in every epoch"),
          field<&S::drop_last>("drop_last", "without a short global batch at the end"),
          field<&S::fingerprint>("fingerprint", "of the samples"),
      }};
  return list;
}

SamplerState in_batches_of(SamplerState state, int64_t global_batch) {
  if (state.global_batch != global_batch) {
    log::warn("snapshot",
              format("the global batch was {} and is now {}, for which the learning rate may be "
                     "wrong; {}",
                     state.global_batch, global_batch,
                     global_batch_advice(state.global_batch, is_initialized() ? worker_num() : 1)));
  }
  int64_t samples = 0;
  if (__builtin_mul_overflow(state.next_update, state.global_batch, &samples)) {
    throw Error("data",
                format("the saved position is update {} of {} samples each, more than any data "
                       "set has",
                       state.next_update, state.global_batch),
                "the file is damaged: resume from another snapshot");
  }
  state.next_update = samples / global_batch;
  state.global_batch = global_batch;
  return state;
}

ShardedSampler::ShardedSampler(int64_t dataset_size, const SamplerOptions& options)
    : dataset_size_(dataset_size),
      options_(options),
      shard_(resolve_shard(options.rank, options.world_size)) {
  const int64_t batch_size = options_.batch_size;
  const bool drop_last = options_.drop_last;
  const auto [rank, world_size] = shard_;
  std::vector<std::string> problems;
  if (dataset_size < 1)
    problems.push_back(format("the data set has {}", plural(dataset_size, "sample")));
  if (batch_size < 1) problems.push_back(format("batch_size is {}, below 1", batch_size));
  if (world_size < 1) problems.push_back(format("world_size is {}, below 1", world_size));
  if (world_size >= 1 && (rank < 0 || rank >= world_size)) {
    problems.push_back(format("rank {} is outside 0..{}", rank, world_size - 1));
  }
  if (dataset_size >= 1 && world_size > dataset_size) {
    problems.push_back(format("{} ranks are more than the {}, so some would never train",
                              world_size, plural(dataset_size, "sample")));
  }
  if (problems.empty() && __builtin_mul_overflow(batch_size, world_size, &global_batch_)) {
    problems.push_back(format("batch_size {} x {} ranks overflows", batch_size, world_size));
  }
  if (problems.empty() && drop_last && global_batch_ > dataset_size) {
    problems.push_back(
        format("drop_last leaves nothing: one global batch is {} x {}, and there are {}",
               batch_size, plural(world_size, "rank"), plural(dataset_size, "sample")));
  }
  if (!problems.empty()) {
    throw UsageError::all("data", "the samples cannot be sharded", problems,
                          "choose batch_size and the number of ranks to fit the data set");
  }
  const int64_t full = dataset_size / global_batch_;
  const bool short_batch = !drop_last && dataset_size % global_batch_ != 0;
  updates_per_epoch_ = full + (short_batch ? 1 : 0);
}

std::vector<int64_t> ShardedSampler::next() {
  draw_order();
  const int64_t begin = next_update_ * global_batch_;
  const int64_t count = std::min(global_batch_, dataset_size_ - begin);
  const auto cut = [&](int64_t rank) {
    return order_.begin() + begin + count * rank / shard_.world_size;
  };
  std::vector<int64_t> indices(cut(shard_.rank), cut(shard_.rank + 1));
  seek(epoch_, next_update_ + 1);
  return indices;
}

void ShardedSampler::seek(int64_t epoch, int64_t update) {
  if (epoch < 0 || update < 0 || update > updates_per_epoch_) {
    throw Error("data", format("there is no update {} in epoch {}: an epoch has {}", update, epoch,
                               plural(updates_per_epoch_, "update")));
  }
  const bool past_the_end = update == updates_per_epoch_;
  epoch_ = past_the_end ? epoch + 1 : epoch;
  next_update_ = past_the_end ? 0 : update;
}

SamplerState ShardedSampler::state() const {
  return {.seed = options_.seed,
          .epoch = epoch_,
          .next_update = next_update_,
          .dataset_size = dataset_size_,
          .global_batch = global_batch_,
          .shuffle = options_.shuffle,
          .drop_last = options_.drop_last,
          .fingerprint = options_.fingerprint};
}

void ShardedSampler::restore(const SamplerState& saved) {
  const SamplerState here = state();
  PositionDifferences differences;
  differences.compare("seed", saved.seed, here.seed);
  differences.compare_samples("data set size", &SamplerState::dataset_size, saved, here);
  differences.compare("global batch (batch_size x ranks)", saved.global_batch, here.global_batch);
  differences.compare("shuffle", saved.shuffle, here.shuffle);
  differences.compare("drop_last", saved.drop_last, here.drop_last);
  if (differences.found().empty() &&
      (saved.epoch < 0 || saved.next_update < 0 || saved.next_update > updates_per_epoch_)) {
    differences.add(format("update {} of epoch {} does not exist: an epoch has {} updates",
                           saved.next_update, saved.epoch, updates_per_epoch_));
  }
  if (!differences.found().empty()) {
    throw UsageError::all("data", "the saved position does not fit this run", differences.found(),
                          saved.global_batch == here.global_batch
                              ? "resume with the settings of the run that saved it"
                              : global_batch_advice(saved.global_batch, shard_.world_size));
  }
  seek(saved.epoch, saved.next_update);
}

void ShardedSampler::draw_order() {
  if (order_epoch_ == epoch_) return;
  order_.resize(dataset_size_);
  std::iota(order_.begin(), order_.end(), 0);
  if (options_.shuffle) {  // Fisher and Yates
    SplitMix64 random({options_.seed, epoch_});
    for (int64_t left = dataset_size_; left > 1; --left) {
      std::swap(order_[left - 1], order_[random.below(left)]);
    }
  }
  order_epoch_ = epoch_;
}

}  // namespace fleet
