#include "fleet/comm/peer_watch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <sstream>
#include <thread>

#include "fleet/comm/hanging_thread.h"
#include "fleet/comm/host_id.h"
#include "fleet/core/format.h"
#include "fleet/core/process_state.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kPulse = 500ms;
constexpr auto kSilence = 1800ms;  // no pulse for so long: not running
constexpr auto kLookEvery = 20ms;
constexpr auto kAnswer = 2000ms;  // of the store; longer: it cannot be reached

std::string host_name() {
  std::array<char, 256> buffer{};
  return ::gethostname(buffer.data(), buffer.size() - 1) == 0 ? buffer.data() : "localhost";
}

// A line break would end the entry of a pulse.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return line;
}

std::string key_of(std::string_view kind, int rank) { return format("watch/{}/{}", kind, rank); }

}  // namespace

/// What a rank tells the others of itself. As text: "BEAT BLAMES", then one line per group:
/// "NUMBER ORDER GROUP<tab>DOING".
struct PeerWatch::Pulse {
  struct Call {
    uint64_t number = 0;  // of the group's calls so far
    uint64_t order = 0;   // among the calls of all groups: the greatest is the latest
    std::string doing;
  };

  uint64_t beat = 0;
  bool blames = false;                              // failed because another rank did
  std::map<std::string, Call, std::less<>> groups;  // the latest call of each

  /// How this rank keeps a peer's `call` from being finished; empty: it does not.
  std::string keeps_from(const CallPlace& call) const {
    const auto found = groups.find(call.group);
    if (found == groups.end()) {
      return format("has not come this far, or has left: it is not in this group{}", latest());
    }
    const auto& own = found->second;
    if (own.number < call.number) {
      return format("has not come this far: it is at its call {} ('{}'), this is call {}{}",
                    own.number, own.doing, call.number, own.order < started() ? latest() : "");
    }
    if (own.number > call.number || own.doing == one_line(call.what)) return "";
    return format("is at another call: its call {} is '{}', and here it is '{}'", own.number,
                  own.doing, call.what);
  }

  std::string text() const {
    auto result = format("{} {}\n", beat, blames ? 1 : 0);
    for (const auto& [group, call] : groups) {
      result += format("{} {} {}\t{}\n", call.number, call.order, group, call.doing);
    }
    return result;
  }
  static Pulse parse(const std::string& text) {
    std::istringstream lines(text);
    Pulse pulse;
    lines >> pulse.beat >> pulse.blames;
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      Call call;
      std::string group;
      words >> call.number >> call.order;
      words.get();
      std::getline(words, group, '\t');
      std::getline(words, call.doing);
      pulse.groups[group] = std::move(call);
    }
    return pulse;
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

struct PeerWatch::Shared : Ending {
  using Pulses = std::vector<std::optional<Pulse>>;  // by rank

  Store store;  // the thread's only, once it runs
  int rank;
  int size;

  // Guarded by `mutex`.
  Pulse own;
  uint64_t started = 0;  // calls of all groups
  uint64_t asked = 0;
  uint64_t answered = 0;
  Pulses seen;
  std::thread thread;

  Shared(Store store, int rank, int size) : store(std::move(store)), rank(rank), size(size) {}

  void run() {
    std::unique_lock lock(mutex);
    while (!stop) {
      ++own.beat;
      const auto pulse = own;
      const auto question = asked;
      const bool is_asked = question > answered;
      lock.unlock();
      Pulses fresh;
      bool lost = false;
      try {
        store.set(key_of("pulse", rank), pulse.text());
        for (int peer = 0; is_asked && peer < size; ++peer) {
          const auto text = store.try_get(key_of("pulse", peer));
          fresh.push_back(text ? std::optional(Pulse::parse(*text)) : std::nullopt);
        }
      } catch (const std::exception&) {
        lost = true;  // the store is gone; the next collective or the launcher says so
      }
      lock.lock();
      if (lost) break;
      if (is_asked) {
        seen = std::move(fresh);
        answered = question;
        wake.notify_all();
      }
      wake.wait_for(lock, kPulse, [&] { return stop || asked > answered; });
    }
    ended = true;
    wake.notify_all();
  }

  /// Everybody's pulse, after this rank's own has gone out; nothing when the store does not answer.
  std::optional<Pulses> ask() {
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

PeerWatch::~PeerWatch() { rest(); }

void PeerWatch::rest() { end_or_let_go(shared_->thread, *shared_); }

void PeerWatch::gather() {
  for (int peer = 0; peer < size_; ++peer) {
    std::istringstream lines(shared_->store.get(key_of("peer", peer)));
    PeerIdentity identity;
    std::string pid;
    std::getline(lines, identity.host);
    std::getline(lines, identity.host_id);
    std::getline(lines, identity.address);
    std::getline(lines, pid);
    identity.pid = std::atoi(pid.c_str());
    peers_.push_back(std::move(identity));
  }
  shared_->thread = std::thread([shared = shared_] { shared->run(); });
}

std::optional<uint64_t> PeerWatch::beat_of(Store& store, int rank) {
  const auto text = store.try_get(key_of("pulse", rank));
  return text ? std::optional(Pulse::parse(*text).beat) : std::nullopt;
}

uint64_t PeerWatch::starts(std::string_view group, std::string_view what) {
  const std::lock_guard lock(shared_->mutex);
  auto& groups = shared_->own.groups;
  const auto found = groups.find(group);
  auto& call = found != groups.end() ? found->second : groups[std::string(group)];
  call.doing = one_line(what);
  call.order = ++shared_->started;
  return ++call.number;
}

void PeerWatch::forget(std::string_view group) {
  const std::lock_guard lock(shared_->mutex);
  auto& groups = shared_->own.groups;
  if (const auto found = groups.find(group); found != groups.end()) groups.erase(found);
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

std::optional<PeerWatch::Suspects> PeerWatch::suspects(const CallPlace& call) {
  if (auto found = not_running(); !found.empty()) return found;
  const auto before = shared_->ask();
  // A process that dies closes its connections a moment before it counts as dead.
  const auto deadline = std::chrono::steady_clock::now() + kSilence;
  do {
    if (auto found = not_running(); !found.empty()) return found;
    std::this_thread::sleep_for(kLookEvery);
  } while (before && std::chrono::steady_clock::now() < deadline);
  const auto now = before ? shared_->ask() : std::nullopt;
  if (!now) return std::nullopt;

  Suspects found;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto i = static_cast<size_t>(peer);
    if (!(*now)[i] || ((*before)[i] && (*now)[i]->beat == (*before)[i]->beat)) {
      found[peer] = "does not answer any more: it has ended, is stopped, or cannot be reached";
    } else if (auto reason = (*now)[i]->keeps_from(call); !reason.empty()) {
      found[peer] = std::move(reason);
    }
  }
  return found;
}

std::string PeerWatch::store_is_silent() const {
  constexpr int kNamed = 4;
  std::string names;
  int named = 0;
  for (int peer = 0; peer < size_ && named < kNamed; ++peer) {
    if (peer != rank_) names += format("{}{}", named++ == 0 ? "" : ", ", name_of(peer));
  }
  if (size_ - 1 > kNamed) names += format(" and {} more", size_ - 1 - kNamed);
  return format(
      "the rendezvous store does not answer, its host (fleetrun, or rank 0) is gone or cannot be "
      "reached, so nothing is known of {}",
      names);
}

std::string PeerWatch::diagnose(const CallPlace& call) {
  auto found = suspects(call);
  if (!found) return store_is_silent();
  if (found->empty()) return "every peer is alive and at the same call";
  // One failure takes the others down within milliseconds: leave out those who have failed because
  // of another, and tell the others that this rank is one of them.
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->own.blames = true;
  }
  const auto pulses = size_ > 2 ? shared_->ask() : std::nullopt;
  if (pulses) {
    const auto follows = [&](const auto& suspect) {
      const auto& pulse = (*pulses)[static_cast<size_t>(suspect.first)];
      return pulse && pulse->blames;
    };
    if (!std::all_of(found->begin(), found->end(), follows)) std::erase_if(*found, follows);
  }
  std::string text;
  for (const auto& [peer, why] : *found) {
    text += format("{}{} {}", text.empty() ? "" : "; ", name_of(peer), why);
  }
  return text;
}

}  // namespace fleet::comm
