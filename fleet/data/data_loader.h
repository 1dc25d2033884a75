#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "fleet/data/dataset.h"
#include "fleet/data/sharded_sampler.h"

namespace fleet {

template <typename T>
class ReadAhead;

struct LoaderOptions {
  int64_t batch_size = 1;  ///< samples per update on one rank
  int64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;  ///< leave out the samples that do not fill a global batch
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t prefetch = 2;  ///< batches made ahead in a background thread; 0: made when asked for
};

/// Hands out this rank's batches, one epoch at a time, made ahead in a background thread.
///
/// Which samples come when is the sampler's promise (sharded_sampler.h): the same for the same
/// seed, each once per epoch over all ranks. Leaving a loop early is fine. What the data set
/// throws is thrown from the loop. One thread may use a loader at a time.
///
/// A loop over the loader itself goes over what is left of the epoch that it is in, as with
/// MaskedText; `epoch(n)` over the one that is named.
///
///   DataLoader loader(train_set, {.batch_size = 64, .seed = 1, .rank = rank, .world_size = 2});
///   while (loader.state().epoch < 10)
///     for (const Batch& batch : loader) train_on(batch);
class DataLoader {
 public:
  class Epoch;
  class Iterator;

  DataLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);

  /// The batches of `epoch`; right after `restore`, those that are left of it. The loader must
  /// outlive the range.
  Epoch epoch(int64_t epoch);

  /// Goes on behind the batch that was handed out last, up to the end of its epoch. The loader must
  /// outlive the iterator.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// The same on every rank.
  int64_t batches_per_epoch() const { return position_.updates_per_epoch(); }

  /// The position behind the batch that was handed out last: prefetched ones do not count.
  SamplerState state() const { return position_.state(); }

  /// Goes on with the very next sample. The loop must then start at `state().epoch`: another epoch
  /// is refused, since it would train on samples twice or not at all.
  void restore(const SamplerState& state);

  const Dataset& dataset() const { return *dataset_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  int64_t prefetch_;
  ShardedSampler position_;
  bool restored_ = false;  // and not yet gone on from there
};

/// One pass over an epoch: a range for one loop.
class DataLoader::Epoch {
 public:
  ~Epoch();
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class DataLoader;

  Epoch(DataLoader& loader, int64_t epoch, int64_t first_update);
  void advance();

  DataLoader& loader_;
  int64_t epoch_;
  int64_t next_update_;
  std::unique_ptr<ReadAhead<Batch>> batches_;
  std::optional<Batch> current_;
};

class DataLoader::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  /// Keeps `epoch` alive when it shares its ownership.
  explicit Iterator(std::shared_ptr<Epoch> epoch) : epoch_(std::move(epoch)) {}
  const Batch& operator*() const { return *epoch_->current_; }
  const Batch* operator->() const { return &*epoch_->current_; }
  Iterator& operator++() { return epoch_->advance(), *this; }
  void operator++(int) { epoch_->advance(); }
  bool operator==(std::default_sentinel_t) const { return !epoch_->current_; }

 private:
  std::shared_ptr<Epoch> epoch_;
};

}  // namespace fleet
