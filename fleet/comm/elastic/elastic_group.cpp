// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/elastic/elastic_group.h"

#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "fleet/comm/elastic/elastic_member.h"
#include "fleet/comm/rendezvous/thread_stop.h"

namespace fleet::comm {
namespace {

constexpr std::chrono::milliseconds kWatch{100};  // between two checks for lost ranks while idle

}  // namespace

struct ElasticGroup::Job {
  Collective call;
  std::function<void()> work;  // instead of a collective
  std::promise<void> done;
};

struct ElasticGroup::Shared : ThreadStop {
  ElasticMember member;  // used by the thread only

  // Guarded by `mutex`.
  std::deque<Job> queue;
  std::exception_ptr failure;  // after it every call fails
  std::thread thread;

  Shared(const Store& store, int rank, int size, const CommunicatorOptions& options,
         ElasticOptions elastic)
      : member(store, rank, size, options, std::move(elastic)) {}

  std::future<void> push(Job job) {
    auto future = job.done.get_future();
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(job));
    wake.notify_all();
    return future;
  }
  void run();
};

void ElasticGroup::Shared::run() {
  std::unique_lock lock(mutex);
  while (true) {
    wake.wait_for(lock, kWatch, [&] { return stop || !queue.empty(); });
    if (stop && (queue.empty() || failure)) break;
    if (queue.empty() && failure) continue;
    std::optional<Job> job;
    if (!queue.empty()) {
      job.emplace(std::move(queue.front()));
      queue.pop_front();
    }
    auto failed = failure;
    lock.unlock();
    if (!failed) {
      try {
        if (!job) {
          member.watch();
        } else if (job->work) {
          job->work();
        } else {
          member.run(job->call);
        }
      } catch (...) {
        failed = std::current_exception();
        member.disconnect();
      }
    }
    if (job && failed) job->done.set_exception(failed);
    if (job && !failed) job->done.set_value();
    job.reset();
    lock.lock();
    failure = failed;
  }
  lock.unlock();
  member.disconnect();
  lock.lock();
  ended = true;
  wake.notify_all();
}

ElasticGroup::ElasticGroup(const Store& store, int rank, int size,
                           const CommunicatorOptions& options, ElasticOptions elastic)
    : shared_(
          std::make_shared<Shared>(store.duplicate(), rank, size, options, std::move(elastic))) {
  shared_->member.form_group();
  shared_->thread = std::thread([shared = shared_] { shared->run(); });
}

ElasticGroup::~ElasticGroup() { stop(); }

int ElasticGroup::rank() const { return shared_->member.rank(); }
int ElasticGroup::size() const { return shared_->member.size(); }

std::shared_future<void> ElasticGroup::submit(Collective call) {
  return shared_->push({.call = std::move(call)}).share();
}

bool ElasticGroup::is_joining() const { return shared_->member.is_joining(); }

void ElasticGroup::join() {
  shared_->push({.work = [shared = shared_.get()] { shared->member.ask_to_join(); }}).get();
}

std::vector<int> ElasticGroup::admit() {
  const auto incarnations = torch::zeros({size()}, torch::kLong);
  submit({.kind = Collective::Kind::kAdmit,
          .tensors = {incarnations},
          .what = "processes that ask to join"})
      .get();
  std::vector<int> ranks;
  for (int slot = 0; slot < size(); ++slot) {
    if (incarnations[slot].item<int64_t>() > 0) ranks.push_back(slot);
  }
  return ranks;
}

void ElasticGroup::finish_admission() {
  shared_->push({.work = [shared = shared_.get()] { shared->member.finish_admission(); }}).get();
}

std::vector<int> ElasticGroup::present() const { return shared_->member.present(); }

std::string ElasticGroup::waits_for() const { return shared_->member.waits_for(); }

void ElasticGroup::leave() {
  if (is_joining()) return;
  shared_
      ->push({.work =
                  [shared = shared_.get()] {
                    shared->member.close();
                    const std::lock_guard lock(shared->mutex);
                    shared->stop = true;  // from now on lost ranks are ignored
                  }})
      .get();
}

void ElasticGroup::stop() { join_or_detach(shared_->thread, *shared_); }

}  // namespace fleet::comm
