#include "fleet/data/data_loader.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

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

// Makes `count` batches in order, at most `ahead` before they are taken.
class DataLoader::Epoch::Worker {
 public:
  Worker(std::shared_ptr<const Dataset> dataset, ShardedSampler sampler, int64_t count,
         int64_t ahead)
      : dataset_(std::move(dataset)),
        sampler_(std::move(sampler)),
        epoch_(sampler_.state().epoch),
        count_(count),
        ahead_(ahead) {
    if (ahead_ > 0) thread_ = std::thread([this] { run(); });
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ~Worker() {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    room_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  // The next batch; must not be called more than `count` times. Rethrows what the data set threw.
  Batch take() {
    if (ahead_ == 0) return make();
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [this] { return !queue_.empty() || failure_; });
    if (queue_.empty()) std::rethrow_exception(failure_);
    Batch batch = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    room_.notify_one();
    return batch;
  }

 private:
  Batch make() {
    const torch::NoGradGuard no_grad;
    return dataset_->get(sampler_.next(), epoch_);
  }

  void run() try {
    for (int64_t made = 0; made < count_; ++made) {
      {
        std::unique_lock lock(mutex_);
        room_.wait(lock, [this] { return stopped_ || std::ssize(queue_) < ahead_; });
        if (stopped_) return;
      }
      Batch batch = make();
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(batch));
      filled_.notify_one();
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    filled_.notify_one();
  }

  const std::shared_ptr<const Dataset> dataset_;
  ShardedSampler sampler_;
  const int64_t epoch_;
  const int64_t count_;
  const int64_t ahead_;

  std::mutex mutex_;  // guards the next three
  std::deque<Batch> queue_;
  std::exception_ptr failure_;
  bool stopped_ = false;
  std::condition_variable filled_;
  std::condition_variable room_;
  std::thread thread_;  // last: it uses all of the above
};

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
  if (worker_) throw Error("data", "an epoch was iterated twice", "call loader.epoch(n) again");
  auto sampler = loader_.position_;
  sampler.seek(epoch_, next_update_);
  worker_ = std::make_unique<Worker>(loader_.dataset_, std::move(sampler),
                                     loader_.batches_per_epoch() - next_update_, loader_.prefetch_);
  advance();
  return Iterator({std::shared_ptr<Epoch>(), this});  // the range is the caller's
}

void DataLoader::Epoch::advance() {
  current_.reset();  // before the next is awaited, so that its memory is free for reuse
  if (next_update_ == loader_.batches_per_epoch()) return;
  current_ = worker_->take();
  loader_.position_.seek(epoch_, ++next_update_);
}

}  // namespace fleet
