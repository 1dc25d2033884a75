// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/nodes/node_coordinator.h"

#include <algorithm>
#include <functional>
#include <map>

#include "fleet/comm/rendezvous/thread_stop.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::launch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kExchangeEvery = 100ms;
constexpr auto kBeatEvery = 1s;
constexpr int64_t kMaxFailures = 65536;  // of one attempt
constexpr std::ptrdiff_t kMaxLines = 100;
constexpr size_t kMaxText = 4000;
constexpr auto kThreadEnds = 1s;  // longer: it blocks in the store

std::string name_of(const Cluster& cluster, int node) {
  return format("node {} ({})", node, cluster.nodes[static_cast<size_t>(node)].address);
}

// Text from another node is printed on this terminal.
Failure received(const std::string& text) {
  auto failure = Failure::from_json(text);
  failure.what = printable(failure.what, kMaxText);
  failure.log = printable(failure.log, kMaxText);
  if (std::ssize(failure.tail) > kMaxLines)
    failure.tail.erase(failure.tail.begin(), failure.tail.end() - kMaxLines);
  for (auto& line : failure.tail) line = printable(line, kMaxText);
  return failure;
}

}  // namespace

std::string times_lost_key(int node) { return format("lost/{}", node); }

// Kept alive by the thread as well: a thread that blocks in the store is detached at the end.
struct NodeCoordinator::Shared : comm::ThreadStop {
  Shared(const comm::Store& store, const Cluster& cluster, std::chrono::seconds silence)
      : cluster(cluster), count(static_cast<int>(cluster.nodes.size())), silence(silence) {
    if (count > 1) table = store.duplicate().prefixed("fleetrun");
    last_beat.assign(cluster.nodes.size(), {0, Clock::now()});
  }

  void run();
  void exchange();
  void beat();
  void count_as_back();
  void send(std::function<void(comm::Store&)> message);
  std::string key(const std::string& name) const { return format("attempt/{}/{}", attempt, name); }
  bool is_single_node() const { return count == 1; }

  const Cluster cluster;
  const int count;
  const std::chrono::seconds silence;
  std::optional<comm::Store> table;  // used by the thread only

  // Guarded by `mutex`.
  std::vector<std::function<void(comm::Store&)>> outgoing;
  int attempt = 0;
  State state;
  std::optional<Failure> store_failure;  // node 0 has ended
  std::map<int, int> lost_nodes;         // to the attempt they were lost in; known to node 0
  int64_t left = 0;                      // nodes that have left in this attempt
  Clock::time_point last_contact = Clock::now();

  struct Beat {
    int64_t count;
    Clock::time_point seen;
  };
  std::vector<Beat> last_beat;  // used by the thread only
  Clock::time_point next_beat = Clock::now();
  std::thread thread;
};

void NodeCoordinator::Shared::send(std::function<void(comm::Store&)> message) {
  const std::lock_guard lock(mutex);
  outgoing.push_back(std::move(message));
  wake.notify_all();
}

void NodeCoordinator::Shared::run() {
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
      store_failure = Failure{
          .node = 0,
          .what = format("fleetrun on {} has ended, and its store with it", name_of(cluster, 0)),
          .restartable = false};
      break;
    }
    last_contact = Clock::now();
    wake.wait_for(lock, kExchangeEvery, [&] { return stop || !outgoing.empty(); });
  }
  ended = true;
  wake.notify_all();
}

void NodeCoordinator::Shared::exchange() {
  std::vector<std::function<void(comm::Store&)>> messages;
  std::unique_lock lock(mutex);
  messages.swap(outgoing);
  const int now_attempt = attempt;
  State fresh = state;
  const auto key_now = [&](const std::string& name) {
    return format("attempt/{}/{}", now_attempt, name);
  };
  lock.unlock();

  for (const auto& message : messages) message(*table);
  if (Clock::now() >= next_beat) beat();
  const auto failed = std::min<int64_t>(table->add(key_now("failed"), 0), kMaxFailures);
  while (static_cast<int64_t>(fresh.failures.size()) < failed)
    fresh.failures.push_back(
        received(table->get(key_now(format("failure/{}", fresh.failures.size() + 1)))));
  if (!fresh.root_cause)
    if (const auto text = table->try_get(key_now("root_cause"))) fresh.root_cause = received(*text);
  fresh.ready = static_cast<int>(table->add(key_now("ready"), 0));
  fresh.done = static_cast<int>(table->add(key_now("done"), 0));
  const auto gone = table->add(key_now("left"), 0);

  lock.lock();
  if (attempt == now_attempt) {
    state = std::move(fresh);
    left = gone;
    if (state.ready == count) count_as_back();
  }
  wake.notify_all();
}

// All nodes have reached this attempt, those that an earlier one lost included, whether or not
// their heartbeat has been looked at since.
void NodeCoordinator::Shared::count_as_back() {
  std::erase_if(lost_nodes, [&](const auto& lost) {
    if (lost.second >= attempt) return false;
    last_beat[static_cast<size_t>(lost.first)].seen = Clock::now();
    return true;
  });
}

// All nodes have a heartbeat; node 0 checks them and reports losses. The others detect the loss of
// node 0 by its store.
void NodeCoordinator::Shared::beat() {
  next_beat = Clock::now() + kBeatEvery;
  table->add(format("heartbeat/{}", cluster.node_rank), 1);
  if (cluster.node_rank != 0) return;
  for (int node = 1; node < count; ++node) {
    auto& last = last_beat[static_cast<size_t>(node)];
    const auto beats = table->add(format("heartbeat/{}", node), 0);
    if (beats != last.count) {
      last = {beats, Clock::now()};
      const std::lock_guard lock(mutex);
      lost_nodes.erase(node);  // it has rejoined
    }
    if (Clock::now() - last.seen < silence) continue;
    std::unique_lock lock(mutex);
    const auto left_key = key(format("left/{}", node));
    lock.unlock();
    if (table->try_get(left_key)) continue;
    lock.lock();
    if (!lost_nodes.try_emplace(node, attempt).second) continue;
    const Failure failure{.node = node,
                          .what = format("fleetrun on {} has had no heartbeat for {} s",
                                         name_of(cluster, node), silence.count())};
    outgoing.push_back([text = failure.to_json(), prefix = format("attempt/{}/", attempt),
                        key = times_lost_key(node)](comm::Store& store) {
      store.add(key, 1);
      store.set(format("{}failure/{}", prefix, store.add(prefix + "failed", 1)), text);
    });
  }
}

NodeCoordinator::NodeCoordinator(const comm::Store& store, const Cluster& cluster,
                                 std::chrono::seconds silence)
    : shared_(std::make_shared<Shared>(store, cluster, silence)) {
  if (!shared_->is_single_node())
    shared_->thread = std::thread([shared = shared_] { shared->run(); });
}

NodeCoordinator::~NodeCoordinator() { join_or_detach(shared_->thread, *shared_, kThreadEnds); }

void NodeCoordinator::begin(int attempt) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->attempt = attempt;
    shared_->state = {};
    shared_->left = 0;
    if (shared_->is_single_node()) shared_->state.ready = 1;
  }
  if (shared_->is_single_node()) return;
  shared_->send([key = shared_->key("ready"), attempt,
                 node = shared_->cluster.node_rank](comm::Store& store) {
    if (node == 0) store.set(kAttemptKey, format("{}", attempt));
    store.add(key, 1);
  });
}

NodeCoordinator::State NodeCoordinator::state() const {
  const std::lock_guard lock(shared_->mutex);
  State state = shared_->state;
  if (shared_->is_single_node()) return state;
  for (const auto& [node, attempt] : shared_->lost_nodes) state.lost_nodes.push_back(node);
  auto store_failure = shared_->store_failure;
  if (!store_failure && Clock::now() - shared_->last_contact > shared_->silence)
    store_failure = Failure{.node = 0,
                            .what = format("the store of {} has not answered for {} s",
                                           name_of(shared_->cluster, 0), shared_->silence.count()),
                            .restartable = false};
  if (store_failure) {
    state.failures.push_back(*store_failure);
    if (!state.root_cause) state.root_cause = first_cause(state.failures);
    state.root_cause->restartable = false;
  }
  return state;
}

void NodeCoordinator::report(const Failure& failure) {
  if (shared_->is_single_node()) {
    const std::lock_guard lock(shared_->mutex);
    shared_->state.failures.push_back(failure);
    return;
  }
  shared_->send([text = failure.to_json(), prefix = shared_->key("")](comm::Store& store) {
    store.set(format("{}failure/{}", prefix, store.add(prefix + "failed", 1)), text);
  });
}

void NodeCoordinator::report_done() {
  if (shared_->is_single_node()) {
    const std::lock_guard lock(shared_->mutex);
    shared_->state.done = 1;
    return;
  }
  shared_->send([key = shared_->key("done")](comm::Store& store) { store.add(key, 1); });
}

void NodeCoordinator::set_root_cause(const Failure& failure) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->state.root_cause = failure;
  }
  if (shared_->is_single_node()) return;
  shared_->send([text = failure.to_json(), key = shared_->key("root_cause")](comm::Store& store) {
    store.set(key, text);
  });
}

void NodeCoordinator::leave(std::chrono::duration<double> limit) {
  if (shared_->is_single_node()) return;
  shared_->send(
      [key = shared_->key("left"), node = shared_->cluster.node_rank](comm::Store& store) {
        store.set(format("{}/{}", key, node), "yes");
        store.add(key, 1);
      });
  std::unique_lock lock(shared_->mutex);
  shared_->wake.wait_for(lock, limit, [&] {
    if (shared_->ended) return true;
    if (shared_->cluster.node_rank != 0)  // do not wait for a store that does not answer
      return shared_->outgoing.empty() || Clock::now() - shared_->last_contact > shared_->silence;
    return shared_->left + static_cast<int64_t>(shared_->lost_nodes.size()) >= shared_->count;
  });
}

}  // namespace fleet::launch
