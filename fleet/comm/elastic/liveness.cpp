// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/elastic/liveness.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "fleet/comm/rendezvous/host_id.h"
#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/core/process/process_state.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr auto kSampleAfter = 1s;  // most waits end earlier, and each heartbeat costs a request
constexpr auto kSampleEvery = 300ms;
constexpr milliseconds kSilence{1800};  // shorter could be a late heartbeat
// The time in which this process itself was stopped does not count.
constexpr milliseconds kMaxPerSample{600};

std::string who_key(const Slot& slot) { return format("who/{}/{}", slot.rank, slot.incarnation); }
std::string lost_key(const Slot& slot) { return format("lost/{}/{}", slot.rank, slot.incarnation); }
std::string incarnations_key(int rank) { return format("incarnations/{}", rank); }
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
  own_.incarnation = table_.add(incarnations_key(rank), 1);
  table_.set(who_key(own_), format("{}\n{} {}", host_, pid, process_state(pid).started));
  table_.set(taken_key(rank), "1");
  table_.add("changes", 1);
}

std::optional<Slot> Liveness::slot_of(int rank, milliseconds limit) {
  if (!table_.wait_for(taken_key(rank), limit)) return std::nullopt;
  return Slot{rank, table_.add(incarnations_key(rank), 0)};
}

void Liveness::begin_wait(milliseconds waited) {
  samples_.clear();
  wait_began_ = Clock::now();
  waited_ = waited;
}

std::vector<Slot> Liveness::lost_among(const std::vector<Slot>& slots) {
  std::vector<Slot> found;
  const auto changes = table_.add("changes", 0);
  for (const auto& slot : slots) {
    if (!lost_.contains(slot)) {
      const bool is_lost =
          has_ended_here(slot) || is_declared_lost(slot, changes) || has_no_heartbeat(slot);
      if (is_lost) lost_.insert(slot);
    }
    if (lost_.contains(slot)) found.push_back(slot);
  }
  return found;
}

void Liveness::declare_lost(const Slot& slot) {
  table_.set(lost_key(slot), "1");
  table_.add("changes", 1);
}

const Liveness::Process& Liveness::process_of(const Slot& slot) {
  const auto known = processes_.find(slot);
  if (known != processes_.end()) return known->second;
  std::istringstream lines(table_.get(who_key(slot)));
  Process process;
  std::getline(lines, process.host);
  lines >> process.pid >> process.started;
  return processes_[slot] = process;
}

bool Liveness::has_ended_here(const Slot& slot) {
  if (slot == own_) return false;
  const auto& process = process_of(slot);
  if (process.host != host_) return false;
  const auto state = process_state(process.pid);
  return state.has_ended() || state.started != process.started;
}

bool Liveness::is_declared_lost(const Slot& slot, int64_t changes) {
  auto& asked = asked_[slot];
  if (asked == changes) return false;
  asked = changes;
  return table_.add(incarnations_key(slot.rank), 0) > slot.incarnation ||
         table_.try_get(lost_key(slot)).has_value();
}

bool Liveness::has_no_heartbeat(const Slot& slot) {
  const auto now = Clock::now();
  if (slot == own_ || now - wait_began_ < kSampleAfter) return false;
  const auto limit = std::max(timeout_, kSilence);
  auto known = samples_.find(slot);
  if (known == samples_.end()) {
    const auto before = std::min<milliseconds>(waited_ + kSampleAfter, limit - kSilence);
    samples_[slot] = {PeerWatch::heartbeat_of(store_, slot.rank), now, before};
    return false;
  }
  auto& sample = known->second;
  if (now - sample.sampled < kSampleEvery) return false;
  const auto beat = PeerWatch::heartbeat_of(store_, slot.rank);
  const auto passed = std::chrono::duration_cast<milliseconds>(now - sample.sampled);
  sample.silent =
      beat == sample.beat ? sample.silent + std::min(passed, kMaxPerSample) : milliseconds(0);
  sample.beat = beat;
  sample.sampled = now;
  if (sample.silent < limit) return false;
  declare_lost(slot);
  return true;
}

}  // namespace fleet::comm
