#include "fleet/comm/liveness.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "fleet/comm/host_id.h"
#include "fleet/comm/peer_watch.h"
#include "fleet/core/format.h"
#include "fleet/core/process_state.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr auto kListenAfter = 1s;  // most waits are over by then, and pulses cost a question each
constexpr auto kListenEvery = 300ms;
constexpr milliseconds kSilence{1800};  // the least that tells silence from a late pulse
// A process that was stopped itself must not hold the time against the others.
constexpr milliseconds kMostPerSample{600};

std::string who_key(const Seat& seat) { return format("who/{}/{}", seat.rank, seat.life); }
std::string gone_key(const Seat& seat) { return format("gone/{}/{}", seat.rank, seat.life); }
std::string lives_key(int rank) { return format("lives/{}", rank); }
std::string taken_key(int rank) { return format("taken/{}", rank); }

}  // namespace

Liveness::Liveness(Store store, int rank, milliseconds timeout)
    : store_(std::move(store)),
      table_(store_.prefixed("liveness")),
      timeout_(timeout),
      own_{.rank = rank},
      host_(host_id()),
      wait_began_(Clock::now()) {
  const int pid = ::getpid();
  own_.life = table_.add(lives_key(rank), 1);
  table_.set(who_key(own_), format("{}\n{} {}", host_, pid, process_state(pid).started));
  table_.set(taken_key(rank), "1");
  table_.add("changes", 1);
}

std::optional<Seat> Liveness::seat_of(int rank, milliseconds limit) {
  if (!table_.wait_for(taken_key(rank), limit)) return std::nullopt;
  return Seat{rank, table_.add(lives_key(rank), 0)};
}

void Liveness::begin_wait(milliseconds waited) {
  listening_.clear();
  wait_began_ = Clock::now();
  waited_ = waited;
}

std::vector<Seat> Liveness::gone_among(const std::vector<Seat>& seats) {
  std::vector<Seat> found;
  const auto changes = table_.add("changes", 0);
  for (const auto& seat : seats) {
    if (!gone_.contains(seat)) {
      const bool is_gone =
          has_ended_here(seat) || is_said_to_be_gone(seat, changes) || is_silent(seat);
      if (is_gone) gone_.insert(seat);
    }
    if (gone_.contains(seat)) found.push_back(seat);
  }
  return found;
}

void Liveness::declare_gone(const Seat& seat) {
  table_.set(gone_key(seat), "1");
  table_.add("changes", 1);
}

const Liveness::Process& Liveness::process_of(const Seat& seat) {
  const auto known = processes_.find(seat);
  if (known != processes_.end()) return known->second;
  std::istringstream lines(table_.get(who_key(seat)));
  Process process;
  std::getline(lines, process.host);
  lines >> process.pid >> process.started;
  return processes_[seat] = process;
}

bool Liveness::has_ended_here(const Seat& seat) {
  if (seat == own_) return false;
  const auto& process = process_of(seat);
  if (process.host != host_) return false;
  const auto state = process_state(process.pid);
  return state.has_ended() || state.started != process.started;
}

bool Liveness::is_said_to_be_gone(const Seat& seat, int64_t changes) {
  auto& asked = asked_[seat];
  if (asked == changes) return false;
  asked = changes;
  return table_.add(lives_key(seat.rank), 0) > seat.life ||
         table_.try_get(gone_key(seat)).has_value();
}

bool Liveness::is_silent(const Seat& seat) {
  const auto now = Clock::now();
  if (seat == own_ || now - wait_began_ < kListenAfter) return false;
  const auto limit = std::max(timeout_, kSilence);
  auto known = listening_.find(seat);
  if (known == listening_.end()) {
    const auto before = std::min<milliseconds>(waited_ + kListenAfter, limit - kSilence);
    listening_[seat] = {PeerWatch::beat_of(store_, seat.rank), now, before};
    return false;
  }
  auto& listening = known->second;
  if (now - listening.sampled < kListenEvery) return false;
  const auto beat = PeerWatch::beat_of(store_, seat.rank);
  const auto passed = std::chrono::duration_cast<milliseconds>(now - listening.sampled);
  listening.silent = beat == listening.beat ? listening.silent + std::min(passed, kMostPerSample)
                                            : milliseconds(0);
  listening.beat = beat;
  listening.sampled = now;
  if (listening.silent < limit) return false;
  declare_gone(seat);
  return true;
}

}  // namespace fleet::comm
