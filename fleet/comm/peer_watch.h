#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
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

/// Tells, after a collective has failed, which peer is to blame. The engine only says that some
/// connection broke or some time ran out; this keeps, for each rank, a pulse in the store with what
/// the rank is doing, and asks the kernel about ranks on the same machine.
///
/// Costs one small store write every half second on a thread of its own.
class PeerWatch {
 public:
  /// `store` must be a connection of its own: it is used from another thread.
  PeerWatch(Store store, int rank, int size, const std::string& address);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// Learns who the peers are; waits until all of them are there.
  void gather();

  /// This rank starts a collective; returns its number.
  uint64_t starts(std::string_view what);

  /// One sentence per suspect peer, for an error. Takes up to about two seconds, never throws.
  std::string diagnose(uint64_t sequence);

  const std::vector<PeerIdentity>& peers() const { return peers_; }

 private:
  struct Pulse {
    uint64_t beat = 0;
    uint64_t sequence = 0;
    std::string doing;
  };
  void run();
  std::optional<Pulse> read_pulse(int peer);
  std::string local_state(int peer) const;
  std::string name_of(int peer) const;

  Store store_;
  int rank_;
  int size_;
  std::vector<PeerIdentity> peers_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool stop_ = false;
  Pulse own_;
  std::mutex store_mutex_;  // the store's connection is not shared between threads at once
  std::thread thread_;
};

}  // namespace fleet::comm
