// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "fleet/core/error.h"
#include "fleet/data/dataset.h"
#include "fleet/data/loader_position.h"
#include "fleet/data/prefetcher.h"

namespace fleet {

/// Yields this rank's batches, one epoch at a time, prefetched by a background thread. `B` is
/// what the data set's `get` returns: fleet::Batch, or a type of the user's.
///
/// The sampler (sharded_sampler.h) decides the order: the same for the same seed, each sample once
/// per epoch over all ranks. Leaving a loop early is fine. What the data set
/// throws is thrown from the loop. One thread may use a loader at a time.
///
/// A loop over the loader itself iterates over the rest of its current epoch, as with MaskedText;
/// `epoch(n)` over epoch n.
///
///   fleet::init();
///   DataLoader loader(train_set, {.batch_size = 64, .seed = 1});   // of any DatasetLike
///   while (loader.state().epoch < 10)
///     for (const auto& batch : loader) train_on(batch);
template <typename B = Batch>
class DataLoader {
 public:
  class Epoch;
  class Iterator;

  template <typename D>
  requires std::same_as<BatchOf<D>, B> DataLoader(std::shared_ptr<D> dataset,
                                                  const LoaderOptions& options)
      : dataset_(as_dataset(std::move(dataset))),
        position_(dataset_ ? dataset_->size() : 0, dataset_ ? dataset_->fingerprint() : 0,
                  options) {}

  /// The batches of `epoch`; right after `restore`, those that are left of it. The loader must
  /// outlive the range.
  Epoch epoch(int64_t epoch) { return Epoch(*this, epoch, position_.start(epoch)); }

  /// Continues after the last yielded batch, to the end of its epoch. The loader must outlive the
  /// iterator.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// The same on every rank.
  int64_t batches_per_epoch() const { return position_.updates_per_epoch(); }

  /// The position after the last yielded batch: prefetched ones do not count.
  SamplerState state() const { return position_.state(); }

  /// Resumes with the next sample. The loop must then start at `state().epoch`: another epoch is
  /// refused, since it would train on samples twice or not at all.
  void restore(const SamplerState& state) { position_.restore(state); }

  const DatasetOf<B>& dataset() const { return *dataset_; }

 private:
  std::shared_ptr<const DatasetOf<B>> dataset_;
  LoaderPosition position_;
};

template <typename D>
DataLoader(std::shared_ptr<D> dataset, const LoaderOptions& options) -> DataLoader<BatchOf<D>>;

/// One pass over an epoch: a range for one loop.
template <typename B>
class DataLoader<B>::Epoch {
 public:
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class DataLoader;

  Epoch(DataLoader& loader, int64_t epoch, int64_t first_update)
      : loader_(loader), epoch_(epoch), next_update_(first_update) {}
  void advance();

  DataLoader& loader_;
  int64_t epoch_;
  int64_t next_update_;
  std::unique_ptr<Prefetcher<B>> batches_;
  std::optional<B> current_;
};

/// Reads the batches of one epoch, once.
template <typename B>
class DataLoader<B>::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = B;
  using difference_type = std::ptrdiff_t;

  /// Keeps `epoch` alive when it shares its ownership.
  explicit Iterator(std::shared_ptr<Epoch> epoch) : epoch_(std::move(epoch)) {}
  const B& operator*() const { return *epoch_->current_; }
  const B* operator->() const { return &*epoch_->current_; }
  Iterator& operator++() { return epoch_->advance(), *this; }
  void operator++(int) { epoch_->advance(); }
  bool operator==(std::default_sentinel_t) const { return !epoch_->current_; }

 private:
  std::shared_ptr<Epoch> epoch_;
};

template <typename B>
typename DataLoader<B>::Iterator DataLoader<B>::begin() {
  const auto at = position_.start_from_here();
  // Not make_shared: the constructor is private.
  const std::shared_ptr<Epoch> rest(new Epoch(*this, at.epoch, at.next_update));
  rest->begin();
  return Iterator(rest);
}

template <typename B>
typename DataLoader<B>::Iterator DataLoader<B>::Epoch::begin() {
  if (batches_) throw Error("data", "an epoch was iterated twice", "call loader.epoch(n) again");
  const auto make = [dataset = loader_.dataset_, epoch = epoch_,
                     sampler = loader_.position_.sampler_at(epoch_, next_update_),
                     samples = std::optional<std::vector<int64_t>>()]() mutable {
    const torch::NoGradGuard no_grad;
    if (!samples) samples = sampler.next();  // of a `get` that failed: the same again
    auto batch = dataset->get(*samples, epoch);
    samples.reset();
    return batch;
  };
  batches_ = std::make_unique<Prefetcher<B>>(make, loader_.batches_per_epoch() - next_update_,
                                             loader_.position_.prefetch());
  advance();
  return Iterator({std::shared_ptr<Epoch>(), this});  // the range is the caller's
}

template <typename B>
void DataLoader<B>::Epoch::advance() {
  current_.reset();  // before the next is awaited, so that its memory is free for reuse
  if (next_update_ == loader_.batches_per_epoch()) return;
  current_.emplace(batches_->take());
  loader_.position_.seek(epoch_, ++next_update_);
}

extern template class DataLoader<Batch>;

}  // namespace fleet
