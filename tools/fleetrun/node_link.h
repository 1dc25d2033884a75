#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fleet/comm/store.h"

#include "tools/fleetrun/cluster.h"
#include "tools/fleetrun/failure.h"

namespace fleet::launch {

/// Keys of the launchers' table that a node needs which takes the place of one that vanished.
std::string times_vanished_key(int node);
constexpr auto kAttemptKey = "attempt";

/// What the launchers of all nodes tell each other while the ranks run: failures, ends, restarts
/// and that they are alive. All traffic is in a thread of its own, so that a node 0 that no longer
/// answers cannot hold up the supervision here. On a single node it is a notice board without a
/// thread.
///
///   NodeLink link(store, cluster);
///   link.begin(0);
///   link.report(failure);          // at once, so that the store keeps the order
///   link.view().failures;          // of all nodes, oldest first
class NodeLink {
 public:
  NodeLink(const comm::Store& store, const Cluster& cluster);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  struct View {
    std::vector<Failure> failures;   // oldest first
    std::optional<Failure> verdict;  // node 0's choice among them
    int ready = 0;                   // nodes that have arrived at this attempt
    int done = 0;                    // nodes whose ranks have all succeeded
    std::vector<int> vanished;       // nodes of which node 0 hears nothing; known there only
  };

  /// Enters an attempt: what is seen and said from now on belongs to it. Node 0 tells nodes that
  /// come back later which one it is (`kAttemptKey`).
  void begin(int attempt);
  View view() const;

  void report(const Failure& failure);
  void report_done();
  /// Node 0 decides which failure is named everywhere.
  void decide(const Failure& failure);

  /// Says good-bye; node 0, which hosts the store, stays until the others have left, at most
  /// `patience`.
  void leave(std::chrono::duration<double> patience);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace fleet::launch
