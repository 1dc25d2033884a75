#include "fleet/comm/peer_watch.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "fleet/core/error.h"
#include "fleet/core/format.h"
#include "fleet/core/log.h"

namespace fleet::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kPulse = 500ms;
constexpr auto kSilence = 1800ms;  // no pulse for so long: not running

std::string read_link(const char* path) {
  std::array<char, 256> buffer{};
  const auto length = ::readlink(path, buffer.data(), buffer.size());
  return length > 0 ? std::string(buffer.data(), static_cast<size_t>(length)) : std::string();
}

std::string this_host_id() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(boot, id);
  return id + read_link("/proc/self/ns/pid");
}

std::string host_name() {
  std::array<char, 256> buffer{};
  return ::gethostname(buffer.data(), buffer.size() - 1) == 0 ? buffer.data() : "localhost";
}

std::string key_of(std::string_view kind, int rank) { return format("watch/{}/{}", kind, rank); }

// The state letter of /proc/PID/stat follows the last ')': a program's name may hold anything.
char process_state(int pid) {
  std::ifstream file(format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const auto close = text.rfind(") ");
  return close == std::string::npos || close + 2 >= text.size() ? '\0' : text[close + 2];
}

}  // namespace

PeerWatch::PeerWatch(Store store, int rank, int size, const std::string& address)
    : store_(std::move(store)), rank_(rank), size_(size) {
  const PeerIdentity own{host_name(), this_host_id(), address, ::getpid()};
  store_.set(key_of("peer", rank),
             format("{}\n{}\n{}\n{}", own.host, own.host_id, own.address, own.pid));
  thread_ = std::thread([this] { run(); });
}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void PeerWatch::gather() {
  const std::lock_guard lock(store_mutex_);
  for (int peer = 0; peer < size_; ++peer) {
    std::istringstream lines(store_.get(key_of("peer", peer)));
    PeerIdentity identity;
    std::string pid;
    std::getline(lines, identity.host);
    std::getline(lines, identity.host_id);
    std::getline(lines, identity.address);
    std::getline(lines, pid);
    identity.pid = std::atoi(pid.c_str());
    peers_.push_back(std::move(identity));
  }
}

uint64_t PeerWatch::starts(std::string_view what) {
  const std::lock_guard lock(mutex_);
  own_.doing = what;
  return ++own_.sequence;
}

void PeerWatch::run() {
  while (true) {
    Pulse pulse;
    {
      std::unique_lock lock(mutex_);
      ++own_.beat;
      pulse = own_;
    }
    try {
      const std::lock_guard lock(store_mutex_);
      store_.set(key_of("pulse", rank_),
                 format("{} {} {}", pulse.beat, pulse.sequence, pulse.doing));
    } catch (const std::exception&) {
      return;  // the store is gone; the next collective or the launcher says so
    }
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, kPulse, [this] { return stop_; })) return;
  }
}

std::optional<PeerWatch::Pulse> PeerWatch::read_pulse(int peer) {
  const std::lock_guard lock(store_mutex_);
  const auto text = store_.try_get(key_of("pulse", peer));
  if (!text) return std::nullopt;
  std::istringstream words(*text);
  Pulse pulse;
  words >> pulse.beat >> pulse.sequence;
  words.get();
  std::getline(words, pulse.doing);
  return pulse;
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
  switch (process_state(identity.pid)) {
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

std::string PeerWatch::diagnose(uint64_t sequence) {
  std::vector<std::string> suspects;
  std::vector<bool> accused(static_cast<size_t>(size_), false);
  const auto accuse = [&](int peer, const std::string& why) {
    suspects.push_back(format("{} {}", name_of(peer), why));
    accused[static_cast<size_t>(peer)] = true;
  };
  try {
    std::map<int, Pulse> before;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      if (const auto state = local_state(peer); !state.empty()) {
        accuse(peer, state);
      } else if (const auto pulse = read_pulse(peer)) {
        before[peer] = *pulse;
      }
    }
    if (suspects.empty()) {
      std::this_thread::sleep_for(kSilence);
      for (const auto& [peer, pulse] : before) {
        if (const auto state = local_state(peer); !state.empty()) {
          accuse(peer, state);
          continue;
        }
        const auto now = read_pulse(peer);
        if (!now || now->beat == pulse.beat) {
          accuse(peer, "does not answer any more: it has ended, is stopped, or cannot be reached");
        } else if (now->sequence < sequence) {
          accuse(peer, format("has not come this far: it is at its call {} ('{}'), this is call {}",
                              now->sequence, now->doing, sequence));
        }
      }
    }
  } catch (const std::exception&) {
    suspects.push_back(
        "the rendezvous store does not answer: its host (fleetrun, or rank 0) is gone");
  }
  if (suspects.empty()) return "every peer is alive and at the same call";
  std::string text;
  for (const auto& suspect : suspects) text += (text.empty() ? "" : "; ") + suspect;
  return text;
}

}  // namespace fleet::comm
