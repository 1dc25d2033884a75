// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/peer_watch.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <thread>

#include "fleet/comm/rendezvous/host_id.h"
#include "fleet/comm/rendezvous/thread_stop.h"
#include "fleet/core/process/process_state.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/printable.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kHeartbeat = 500ms;
constexpr auto kSilence = 1800ms;  // without a heartbeat: not running
constexpr auto kPollInterval = 20ms;
constexpr auto kAnswer = 2000ms;  // of the store; longer: unreachable

constexpr int kNamed = 4;  // at most so many peers are named
constexpr size_t kMaxShown = 300;
constexpr size_t kMaxGroups = 1000;  // of one heartbeat

// Without the line breaks and tabs that would end the entry of a heartbeat.
std::string one_line(std::string_view text) { return printable(text, kMaxShown); }
// The same from another process, which has cut it already.
std::string as_received(std::string_view text) { return printable(text, 2 * kMaxShown); }

std::string key_of(std::string_view kind, int rank) { return format("watch/{}/{}", kind, rank); }

}  // namespace

/// What a rank publishes. As text: "BEAT FAILED_BY_PEER", then one line per group:
/// "NUMBER ORDER GROUP<tab>DOING".
struct PeerWatch::Heartbeat {
  struct Call {
    uint64_t number = 0;  // of the group's calls so far
    uint64_t order = 0;   // among the calls of all groups: the greatest is the latest
    std::string doing;
  };

  uint64_t beat = 0;
  bool failed_by_peer = false;                      // because another rank failed
  std::map<std::string, Call, std::less<>> groups;  // the latest call of each

  /// Why this rank blocks a peer's `call`; empty: it does not.
  std::string blocks(const CallId& call) const {
    const auto found = groups.find(one_line(call.group));
    if (found == groups.end()) {
      return format("has not reached this call, or has left: it is not in this group{}", latest());
    }
    const auto& own = found->second;
    if (own.number < call.number) {
      return format("has not reached this call: it is at its call {} ('{}'), this is call {}{}",
                    own.number, own.doing, call.number, own.order < started() ? latest() : "");
    }
    return differs_from(call);
  }

  /// The same sequence number, and another call.
  std::string differs_from(const CallId& call) const {
    const auto found = groups.find(one_line(call.group));
    const auto here = one_line(call.what);
    if (found == groups.end() || found->second.number != call.number ||
        found->second.doing == here) {
      return "";
    }
    return format("is at another call: its call {} is '{}', and here it is '{}'", call.number,
                  found->second.doing, here);
  }

  /// The position of this rank, for a peer that has found no failure.
  std::string place(const CallId& call) const {
    const auto found = groups.find(one_line(call.group));
    if (found == groups.end()) return "not in this group" + latest();
    return format("at its call {} ('{}'){}", found->second.number, found->second.doing,
                  found->second.order < started() ? latest() : "");
  }

  std::string text() const {
    auto result = format("{} {}\n", beat, failed_by_peer ? 1 : 0);
    for (const auto& [group, call] : groups) {
      result += format("{} {} {}\t{}\n", call.number, call.order, group, call.doing);
    }
    return result;
  }
  static Heartbeat parse(const std::string& text) {
    std::istringstream lines(text);
    Heartbeat heartbeat;
    lines >> heartbeat.beat >> heartbeat.failed_by_peer;
    std::string line;
    std::getline(lines, line);
    while (heartbeat.groups.size() < kMaxGroups && std::getline(lines, line)) {
      std::istringstream words(line);
      Call call;
      std::string group;
      words >> call.number >> call.order;
      words.get();
      std::getline(words, group, '\t');
      std::getline(words, call.doing);
      call.doing = as_received(call.doing);
      heartbeat.groups[as_received(group)] = std::move(call);
    }
    return heartbeat;
  }

 private:
  uint64_t started() const {
    uint64_t most = 0;
    for (const auto& [group, call] : groups) most = std::max(most, call.order);
    return most;
  }
  std::string latest() const {
    for (const auto& [group, call] : groups) {
      if (call.order == started()) return format("; its latest call is '{}'", call.doing);
    }
    return "";
  }
};

struct PeerWatch::Shared : ThreadStop {
  Store store;  // used by the thread only, once it runs
  int rank;
  int size;

  // Guarded by `mutex`.
  Heartbeat own;
  uint64_t started = 0;  // calls of all groups
  uint64_t asked = 0;
  uint64_t answered = 0;
  Heartbeats seen;
  std::chrono::steady_clock::time_point seen_at;
  std::thread thread;

  Shared(Store store, int rank, int size) : store(std::move(store)), rank(rank), size(size) {}

  void run() {
    std::unique_lock lock(mutex);
    while (!stop) {
      ++own.beat;
      const auto heartbeat = own;
      const auto question = asked;
      const bool is_asked = question > answered;
      lock.unlock();
      Heartbeats fresh;
      bool lost = false;
      try {
        store.set(key_of("heartbeat", rank), heartbeat.text());
        for (int peer = 0; is_asked && peer < size; ++peer) {
          const auto text = store.try_get(key_of("heartbeat", peer));
          fresh.push_back(text ? std::optional(Heartbeat::parse(*text)) : std::nullopt);
        }
      } catch (const std::exception&) {
        lost = true;  // the store is lost; the next collective or the launcher reports it
      }
      lock.lock();
      if (lost) break;
      if (is_asked) {
        seen = std::move(fresh);
        seen_at = std::chrono::steady_clock::now();
        answered = question;
        wake.notify_all();
      }
      wake.wait_for(lock, kHeartbeat, [&] { return stop || asked > answered; });
    }
    ended = true;
    wake.notify_all();
  }

  /// What was answered last, if new heartbeats must have come since.
  Heartbeats last() {
    const std::lock_guard lock(mutex);
    return std::chrono::steady_clock::now() - seen_at < kSilence ? Heartbeats() : seen;
  }

  /// All heartbeats, after this rank has published its own; nothing when the store does not
  /// answer.
  std::optional<Heartbeats> ask() {
    std::unique_lock lock(mutex);
    const auto question = ++asked;
    wake.notify_all();
    wake.wait_for(lock, kAnswer, [&] { return ended || answered >= question; });
    return answered >= question ? std::optional(seen) : std::nullopt;
  }
};

PeerWatch::PeerWatch(Store store, int rank, int size, const std::string& address)
    : rank_(rank), size_(size), shared_(std::make_shared<Shared>(std::move(store), rank, size)) {
  const PeerIdentity own{host_name(), host_id(), address, ::getpid()};
  shared_->store.set(key_of("peer", rank),
                     format("{}\n{}\n{}\n{}", own.host, own.host_id, own.address, own.pid));
}

PeerWatch::~PeerWatch() { stop(); }

void PeerWatch::stop() { join_or_detach(shared_->thread, *shared_); }

void PeerWatch::gather_identities() {
  for (int peer = 0; peer < size_; ++peer) {
    std::istringstream lines(shared_->store.get(key_of("peer", peer)));
    PeerIdentity identity;
    std::string pid;
    std::getline(lines, identity.host);
    std::getline(lines, identity.host_id);
    std::getline(lines, identity.address);
    std::getline(lines, pid);
    identity.pid = std::atoi(pid.c_str());
    for (auto* text : {&identity.host, &identity.host_id, &identity.address}) {
      *text = as_received(*text);
    }
    peers_.push_back(std::move(identity));
  }
  shared_->thread = std::thread([shared = shared_] { shared->run(); });
}

std::optional<uint64_t> PeerWatch::heartbeat_of(Store& store, int rank) {
  const auto text = store.try_get(key_of("heartbeat", rank));
  return text ? std::optional(Heartbeat::parse(*text).beat) : std::nullopt;
}

uint64_t PeerWatch::begin_call(std::string_view group, std::string_view what) {
  const std::lock_guard lock(shared_->mutex);
  auto& call = shared_->own.groups[one_line(group)];
  call.doing = one_line(what);
  call.order = ++shared_->started;
  return ++call.number;
}

void PeerWatch::forget(std::string_view group) {
  const std::lock_guard lock(shared_->mutex);
  shared_->own.groups.erase(one_line(group));
}

std::string PeerWatch::name_of(int peer) const {
  if (static_cast<size_t>(peer) >= peers_.size()) return format("rank {}", peer);
  const auto& identity = peers_[static_cast<size_t>(peer)];
  return format("rank {} ({}, pid {})", peer, identity.host, identity.pid);
}

std::string PeerWatch::local_state(int peer) const {
  if (peers_.size() != static_cast<size_t>(size_)) return "";
  const auto& identity = peers_[static_cast<size_t>(peer)];
  if (identity.host_id != peers_[static_cast<size_t>(rank_)].host_id) return "";
  switch (process_state(identity.pid).letter) {
    case '\0':
    case 'Z':
    case 'X':
      return "has ended";
    case 'T':
    case 't':
      return "is stopped (SIGSTOP or a debugger)";
    default:
      return "";
  }
}

PeerWatch::Suspects PeerWatch::not_running() const {
  Suspects found;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (auto state = local_state(peer); !state.empty()) found[peer] = std::move(state);
  }
  return found;
}

// The last heartbeat shows whether a rank ended because it was at another call than its peers.
PeerWatch::Suspects PeerWatch::with_their_calls(Suspects found, const CallId& call) {
  const auto heartbeats = shared_->ask();
  if (!heartbeats) return found;
  for (auto& [peer, why] : found) {
    const auto& heartbeat = (*heartbeats)[static_cast<size_t>(peer)];
    const auto difference = heartbeat ? heartbeat->differs_from(call) : "";
    if (!difference.empty()) why = format("{}; it {}", difference, why);
  }
  return found;
}

std::optional<PeerWatch::Suspects> PeerWatch::suspects(const CallId& call) {
  if (auto found = not_running(); !found.empty()) return with_their_calls(std::move(found), call);
  const auto before = shared_->ask();
  // A process that dies closes its connections a moment before it counts as dead.
  const auto deadline = std::chrono::steady_clock::now() + kSilence;
  do {
    if (auto found = not_running(); !found.empty()) return with_their_calls(std::move(found), call);
    std::this_thread::sleep_for(kPollInterval);
  } while (before && std::chrono::steady_clock::now() < deadline);
  const auto now = before ? shared_->ask() : std::nullopt;
  return now ? std::optional(blocking(*before, *now, call)) : std::nullopt;
}

// `before`: heartbeats that are old enough for new ones to have come; empty: there are none.
PeerWatch::Suspects PeerWatch::blocking(const Heartbeats& before, const Heartbeats& now,
                                        const CallId& call) const {
  Suspects found;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto i = static_cast<size_t>(peer);
    if (!now[i] || (!before.empty() && before[i] && now[i]->beat == before[i]->beat)) {
      found[peer] = "has no heartbeat any more: it has ended, is stopped, or cannot be reached";
    } else if (auto reason = now[i]->blocks(call); !reason.empty()) {
      found[peer] = std::move(reason);
    }
  }
  return found;
}

std::string PeerWatch::store_unreachable() const {
  std::string names;
  int named = 0;
  for (int peer = 0; peer < size_ && named < kNamed; ++peer) {
    if (peer != rank_) names += format("{}{}", named++ == 0 ? "" : ", ", name_of(peer));
  }
  if (size_ - 1 > kNamed) names += format(" and {} more", size_ - 1 - kNamed);
  return format(
      "the rendezvous store does not answer, its host (fleetrun, or rank 0) has ended or cannot be "
      "reached, so the state of {} is unknown",
      names);
}

// All peers are alive: their calls show what is wrong.
std::string PeerWatch::positions_of_all(const CallId& call) {
  const auto heartbeats = shared_->ask();
  if (!heartbeats) return store_unreachable();
  std::string text = format("every peer is alive; this rank is at its call {} ('{}')", call.number,
                            one_line(call.what));
  int named = 0;
  for (int peer = 0; peer < size_ && named < kNamed; ++peer) {
    const auto& heartbeat = (*heartbeats)[static_cast<size_t>(peer)];
    if (peer == rank_ || !heartbeat) continue;
    text += format(", {} {}", name_of(peer), heartbeat->place(call));
    ++named;
  }
  if (size_ - 1 > kNamed) text += format(", and {} more", size_ - 1 - kNamed);
  return text;
}

std::string PeerWatch::diagnose(const CallId& call) {
  auto found = suspects(call);
  if (!found) return store_unreachable();
  if (found->empty()) return positions_of_all(call);
  // One failure makes the others fail within milliseconds: leave out ranks that failed because of
  // another, and publish that this rank is one of them.
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->own.failed_by_peer = true;
  }
  const auto heartbeats = size_ > 2 ? shared_->ask() : std::nullopt;
  if (heartbeats) {
    const auto follows = [&](const auto& suspect) {
      const auto& heartbeat = (*heartbeats)[static_cast<size_t>(suspect.first)];
      return heartbeat && heartbeat->failed_by_peer;
    };
    if (!std::all_of(found->begin(), found->end(), follows)) std::erase_if(*found, follows);
  }
  return text_of(*found);
}

std::string PeerWatch::waits_for(const CallId& call) {
  if (const auto found = not_running(); !found.empty()) return text_of(found);
  const auto before = shared_->last();
  const auto now = shared_->ask();
  if (!now) return store_unreachable();
  const auto found = blocking(before, *now, call);
  return found.empty() ? "its peers, which are in it too" : text_of(found);
}

std::string PeerWatch::text_of(const Suspects& found) const {
  std::string text;
  for (const auto& [peer, why] : found) {
    text += format("{}{} {}", text.empty() ? "" : "; ", name_of(peer), why);
  }
  return text;
}

}  // namespace fleet::comm
