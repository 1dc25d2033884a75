#include "fleet/data/data_loader.h"

#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/data/read_ahead.h"

namespace fleet {
namespace {

SamplerOptions sampler_options(const LoaderOptions& options, const Dataset* dataset) {
  return {.batch_size = options.batch_size,
          .seed = options.seed,
          .shuffle = options.shuffle,
          .drop_last = options.drop_last,
          .rank = options.rank,
          .world_size = options.world_size,
          .fingerprint = dataset ? dataset->fingerprint() : 0};
}

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)),
      prefetch_(options.prefetch),
      position_(dataset_ ? dataset_->size() : 0, sampler_options(options, dataset_.get())) {
  if (prefetch_ < 0) {
    throw Error("data", format("prefetch is {}, below 0", prefetch_),
                "use 0 to make batches without a thread");
  }
}

DataLoader::Epoch DataLoader::epoch(int64_t epoch) {
  int64_t first_update = 0;
  if (restored_) {
    const auto restored = position_.state();
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
  position_.seek(epoch, first_update);
  return Epoch(*this, epoch, first_update);
}

DataLoader::Iterator DataLoader::begin() {
  restored_ = false;
  const auto at = state();
  // Not make_shared: the constructor is private.
  const std::shared_ptr<Epoch> rest(new Epoch(*this, at.epoch, at.next_update));
  rest->begin();
  return Iterator(rest);
}

void DataLoader::restore(const SamplerState& state) {
  position_.restore(state);
  restored_ = true;
}

DataLoader::Epoch::Epoch(DataLoader& loader, int64_t epoch, int64_t first_update)
    : loader_(loader), epoch_(epoch), next_update_(first_update) {}

DataLoader::Epoch::~Epoch() = default;

DataLoader::Iterator DataLoader::Epoch::begin() {
  if (batches_) throw Error("data", "an epoch was iterated twice", "call loader.epoch(n) again");
  auto sampler = loader_.position_;
  sampler.seek(epoch_, next_update_);
  const auto make = [dataset = loader_.dataset_, sampler = std::move(sampler),
                     epoch = epoch_]() mutable {
    const torch::NoGradGuard no_grad;
    return dataset->get(sampler.next(), epoch);
  };
  batches_ = std::make_unique<ReadAhead<Batch>>(make, loader_.batches_per_epoch() - next_update_,
                                                loader_.prefetch_);
  advance();
  return Iterator({std::shared_ptr<Epoch>(), this});  // the range is the caller's
}

void DataLoader::Epoch::advance() {
  current_.reset();  // before the next is awaited, so that its memory is free for reuse
  if (next_update_ == loader_.batches_per_epoch()) return;
  current_ = batches_->take();
  loader_.position_.seek(epoch_, ++next_update_);
}

}  // namespace fleet
