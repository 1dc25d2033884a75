#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/comm/store.h"

namespace fleet::comm {

/// Who a rank is, as the others see it.
struct PeerIdentity {
  std::string host;     // as people call it
  std::string host_id;  // equal on ranks that share a kernel and a pid namespace
  std::string address;
  int pid = 0;
};

/// A collective among those of its group, which are numbered from 1 in the order that all ranks
/// start them in.
struct CallPlace {
  std::string group;
  uint64_t number = 0;
  std::string what;
};

/// Tells, after a collective has failed, which peer is to blame. The engine only says that some
/// connection broke or some time ran out; this keeps, for each rank, a pulse in the store with what
/// the rank is doing, and asks the kernel about ranks on the same machine.
///
/// Calls are numbered within their group: groups that other threads use, such as the one that
/// writes snapshots, have an order of their own, and how far a rank has come in one says nothing of
/// another.
///
/// Costs one small store write every half second on a thread of its own, the only one that uses the
/// store: when the store's host cannot be reached, a call to it may block for many minutes, and
/// nobody waits for it.
class PeerWatch {
 public:
  /// `store` must be a connection of its own: it is used from another thread.
  PeerWatch(Store store, int rank, int size, const std::string& address);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// Learns who the peers are; waits until all of them are there.
  void gather();

  /// A number that grows every half second while the process of `rank` runs; nothing before its
  /// first. `store` is the same table through any connection.
  static std::optional<uint64_t> beat_of(Store& store, int rank);

  /// This rank starts a collective; returns its number among those of the group. Any thread.
  uint64_t starts(std::string_view group, std::string_view what);
  /// This rank is done with a group.
  void forget(std::string_view group);

  /// Ends the pulse: from here on nothing touches the store.
  void rest();

  /// One sentence per suspect peer, for an error. Takes up to about four seconds, never throws.
  std::string diagnose(const CallPlace& call);

  const std::vector<PeerIdentity>& peers() const { return peers_; }

 private:
  struct Pulse;
  struct Shared;
  using Suspects = std::map<int, std::string>;  // why, by rank

  /// Nothing when the store does not answer.
  std::optional<Suspects> suspects(const CallPlace& call);
  Suspects not_running() const;
  std::string local_state(int peer) const;
  std::string name_of(int peer) const;
  std::string store_is_silent() const;

  int rank_;
  int size_;
  std::vector<PeerIdentity> peers_;
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this object
};

}  // namespace fleet::comm
