// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/comm/rendezvous/store/store.h"

namespace fleet::comm {

/// How a rank identifies itself to the others.
struct PeerIdentity {
  std::string host;     // its name, for messages
  std::string host_id;  // equal on ranks that share a kernel and a pid namespace
  std::string address;
  int pid = 0;
};

/// A collective and its sequence number in its group, from 1, in the order in which all ranks start
/// them.
struct CallId {
  std::string group;
  uint64_t number = 0;
  std::string what;
};

/// Finds, after a collective has failed, which rank caused it. LibTorch reports only that a
/// connection broke or timed out; this keeps, for each rank, a heartbeat in the store with the call
/// that the rank is in, and asks the kernel about ranks on the same machine.
///
/// Calls are numbered per group: groups of other threads, such as the snapshot writer's, are not
/// ordered relative to each other.
///
/// Costs one small store write every half second on a thread of its own, the only one that uses the
/// store: when the store's host cannot be reached, a request may block for many minutes, and no
/// other thread waits for it.
class PeerWatch {
 public:
  /// `store` must be a separate connection: it is used from another thread.
  PeerWatch(Store store, int rank, int size, const std::string& address);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// Reads the identities of all peers; waits until they have published them.
  void gather_identities();

  /// A counter that grows every half second while the process of `rank` runs; nothing before its
  /// first heartbeat. `store` is the same table through any connection.
  static std::optional<uint64_t> heartbeat_of(Store& store, int rank);

  /// This rank starts a collective; returns its sequence number in the group. Any thread.
  uint64_t begin_call(std::string_view group, std::string_view what);
  /// This rank is done with a group.
  void forget(std::string_view group);

  /// Ends the heartbeat: from then on the store is not used.
  void stop();

  /// One sentence per suspect peer, for an error. Takes up to about four seconds, never throws.
  std::string diagnose(const CallId& call);

  /// The same for a call that may still succeed, for a log: whom it waits for. Takes milliseconds;
  /// two seconds when the store does not answer. Never throws.
  std::string waits_for(const CallId& call);

  const std::vector<PeerIdentity>& peers() const { return peers_; }

 private:
  struct Heartbeat;
  struct Shared;
  using Suspects = std::map<int, std::string>;               // why, by rank
  using Heartbeats = std::vector<std::optional<Heartbeat>>;  // by rank

  /// Nothing when the store does not answer.
  std::optional<Suspects> suspects(const CallId& call);
  Suspects blocking(const Heartbeats& before, const Heartbeats& now, const CallId& call) const;
  Suspects not_running() const;
  Suspects with_their_calls(Suspects found, const CallId& call);
  std::string local_state(int peer) const;
  std::string name_of(int peer) const;
  std::string text_of(const Suspects& found) const;
  std::string store_unreachable() const;
  std::string positions_of_all(const CallId& call);

  int rank_;
  int size_;
  std::vector<PeerIdentity> peers_;
  std::shared_ptr<Shared> shared_;  // owned by the thread too, which may outlive this object
};

}  // namespace fleet::comm
