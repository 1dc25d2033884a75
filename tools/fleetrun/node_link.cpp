#include "tools/fleetrun/node_link.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "fleet/core/error.h"
#include "fleet/core/format.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kExchangeEvery = 100ms;
constexpr auto kBeatEvery = 1s;
constexpr auto kSilence = 10s;  // without a heartbeat a launcher counts as gone

std::string name_of(const Cluster& cluster, int node) {
  return format("node {} ({})", node, cluster.nodes[static_cast<size_t>(node)].address);
}

}  // namespace

std::string times_vanished_key(int node) { return format("vanished/{}", node); }

// Kept alive by the thread as well: a thread that hangs in the store is left behind at the end.
struct NodeLink::Shared {
  Shared(const comm::Store& store, const Cluster& cluster)
      : cluster(cluster), count(static_cast<int>(cluster.nodes.size())) {
    if (count > 1) table = store.duplicate().prefixed("fleetrun");
    last_beat.assign(cluster.nodes.size(), {0, Clock::now()});
  }

  void run();
  void exchange();
  void beat();
  void send(std::function<void(comm::Store&)> message);
  std::string key(const std::string& name) const { return format("attempt/{}/{}", attempt, name); }
  bool alone() const { return count == 1; }

  const Cluster cluster;
  const int count;
  std::optional<comm::Store> table;  // the thread's only

  mutable std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::function<void(comm::Store&)>> outgoing;
  int attempt = 0;
  View view;
  std::optional<Failure> lost;  // node 0 went away
  std::set<int> vanished;       // nodes that node 0 has missed
  int64_t left = 0;             // nodes that have said good-bye
  Clock::time_point last_contact = Clock::now();
  bool stop = false;
  bool ended = false;

  struct Beat {
    int64_t count;
    Clock::time_point seen;
  };
  std::vector<Beat> last_beat;  // the thread's only
  Clock::time_point next_beat = Clock::now();
  std::thread thread;
};

void NodeLink::Shared::send(std::function<void(comm::Store&)> message) {
  const std::lock_guard lock(mutex);
  outgoing.push_back(std::move(message));
  wake.notify_all();
}

void NodeLink::Shared::run() {
  std::unique_lock lock(mutex);
  while (!stop || !outgoing.empty()) {
    lock.unlock();
    std::string reason;
    try {
      exchange();
    } catch (const std::exception& error) {
      reason = error.what();
    }
    lock.lock();
    if (!reason.empty()) {
      lost = Failure{
          .node = 0,
          .what = format("fleetrun on {} went away, and the store with it", name_of(cluster, 0)),
          .restartable = false};
      break;
    }
    last_contact = Clock::now();
    wake.wait_for(lock, kExchangeEvery, [&] { return stop || !outgoing.empty(); });
  }
  ended = true;
  wake.notify_all();
}

void NodeLink::Shared::exchange() {
  std::vector<std::function<void(comm::Store&)>> messages;
  std::unique_lock lock(mutex);
  messages.swap(outgoing);
  const int now_attempt = attempt;
  View fresh = view;
  const auto key_now = [&](const std::string& name) {
    return format("attempt/{}/{}", now_attempt, name);
  };
  lock.unlock();

  for (const auto& message : messages) message(*table);
  if (Clock::now() >= next_beat) beat();
  const auto failed = table->add(key_now("failed"), 0);
  while (static_cast<int64_t>(fresh.failures.size()) < failed)
    fresh.failures.push_back(
        Failure::from_json(table->get(key_now(format("failure/{}", fresh.failures.size() + 1)))));
  if (!fresh.verdict)
    if (const auto text = table->try_get(key_now("verdict")))
      fresh.verdict = Failure::from_json(*text);
  fresh.ready = static_cast<int>(table->add(key_now("ready"), 0));
  fresh.done = static_cast<int>(table->add(key_now("done"), 0));
  const auto gone = table->add("left", 0);

  lock.lock();
  left = gone;
  if (attempt == now_attempt) view = std::move(fresh);
  wake.notify_all();
}

// Everybody beats; node 0 listens to all and tells the others, who notice node 0 by its store.
void NodeLink::Shared::beat() {
  next_beat = Clock::now() + kBeatEvery;
  table->add(format("beat/{}", cluster.node_rank), 1);
  if (cluster.node_rank != 0) return;
  for (int node = 1; node < count; ++node) {
    auto& last = last_beat[static_cast<size_t>(node)];
    const auto beats = table->add(format("beat/{}", node), 0);
    if (beats != last.count) {
      last = {beats, Clock::now()};
      const std::lock_guard lock(mutex);
      vanished.erase(node);  // it has come back
    }
    const bool has_left = table->try_get(format("left/{}", node)).has_value();
    if (has_left || Clock::now() - last.seen < kSilence) continue;
    const std::lock_guard lock(mutex);
    if (!vanished.insert(node).second) continue;
    const Failure failure{.node = node,
                          .what = format("fleetrun on {} has not been heard of for {} s",
                                         name_of(cluster, node), kSilence.count())};
    outgoing.push_back([text = failure.to_json(), prefix = format("attempt/{}/", attempt),
                        key = times_vanished_key(node)](comm::Store& store) {
      store.add(key, 1);
      store.set(format("{}failure/{}", prefix, store.add(prefix + "failed", 1)), text);
    });
  }
}

NodeLink::NodeLink(const comm::Store& store, const Cluster& cluster)
    : shared_(std::make_shared<Shared>(store, cluster)) {
  if (!shared_->alone()) shared_->thread = std::thread([shared = shared_] { shared->run(); });
}

NodeLink::~NodeLink() {
  if (shared_->alone()) return;
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->wake.notify_all();
  const bool ended = shared_->wake.wait_for(lock, 1s, [&] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    shared_->thread.join();
  } else {
    shared_->thread.detach();
  }
}

void NodeLink::begin(int attempt) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->attempt = attempt;
    shared_->view = {};
    if (shared_->alone()) shared_->view.ready = 1;
  }
  if (shared_->alone()) return;
  shared_->send([key = shared_->key("ready"), attempt,
                 node = shared_->cluster.node_rank](comm::Store& store) {
    if (node == 0) store.set(kAttemptKey, format("{}", attempt));
    store.add(key, 1);
  });
}

NodeLink::View NodeLink::view() const {
  const std::lock_guard lock(shared_->mutex);
  View view = shared_->view;
  if (shared_->alone()) return view;
  view.vanished.assign(shared_->vanished.begin(), shared_->vanished.end());
  auto lost = shared_->lost;
  if (!lost && Clock::now() - shared_->last_contact > kSilence)
    lost = Failure{.node = 0,
                   .what = format("the store of {} has not answered for {} s",
                                  name_of(shared_->cluster, 0), kSilence.count()),
                   .restartable = false};
  if (lost) {
    view.failures.push_back(*lost);
    if (!view.verdict) view.verdict = first_cause(view.failures);
    view.verdict->restartable = false;
  }
  return view;
}

void NodeLink::report(const Failure& failure) {
  if (shared_->alone()) {
    const std::lock_guard lock(shared_->mutex);
    shared_->view.failures.push_back(failure);
    return;
  }
  shared_->send([text = failure.to_json(), prefix = shared_->key("")](comm::Store& store) {
    store.set(format("{}failure/{}", prefix, store.add(prefix + "failed", 1)), text);
  });
}

void NodeLink::report_done() {
  if (shared_->alone()) {
    const std::lock_guard lock(shared_->mutex);
    shared_->view.done = 1;
    return;
  }
  shared_->send([key = shared_->key("done")](comm::Store& store) { store.add(key, 1); });
}

void NodeLink::decide(const Failure& failure) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->view.verdict = failure;
  }
  if (shared_->alone()) return;
  shared_->send([text = failure.to_json(), key = shared_->key("verdict")](comm::Store& store) {
    store.set(key, text);
  });
}

void NodeLink::leave(std::chrono::duration<double> patience) {
  if (shared_->alone()) return;
  shared_->send([node = shared_->cluster.node_rank](comm::Store& store) {
    store.set(format("left/{}", node), "yes");
    store.add("left", 1);
  });
  std::unique_lock lock(shared_->mutex);
  shared_->wake.wait_for(lock, patience, [&] {
    if (shared_->ended) return true;
    if (shared_->cluster.node_rank != 0)  // a silent store takes no good-bye
      return shared_->outgoing.empty() || Clock::now() - shared_->last_contact > kSilence;
    return shared_->left + static_cast<int64_t>(shared_->vanished.size()) >= shared_->count;
  });
}

}  // namespace fleet::launch
