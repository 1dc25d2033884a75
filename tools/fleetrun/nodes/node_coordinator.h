// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fleet/comm/rendezvous/store/store.h"

#include "tools/fleetrun/failure.h"
#include "tools/fleetrun/nodes/cluster.h"

namespace fleet::launch {

/// Keys of the launchers' table that a restarted node reads.
std::string times_lost_key(int node);
constexpr auto kAttemptKey = "attempt";

/// Exchanges state between the launchers of all nodes while the ranks run: failures, completion,
/// restarts and heartbeats. All store requests are made by a thread of its own, so that an
/// unresponsive node 0 does not block supervision here. On a single node it only keeps the state,
/// without a thread.
///
///   NodeCoordinator coordinator(store, cluster);
///   coordinator.begin(0);
///   coordinator.report(failure);       // at once, so that the store keeps the order
///   coordinator.state().failures;      // of all nodes, oldest first
class NodeCoordinator {
 public:
  /// A launcher without a heartbeat for `silence` counts as lost.
  NodeCoordinator(const comm::Store& store, const Cluster& cluster,
                  std::chrono::seconds silence = std::chrono::seconds(10));
  ~NodeCoordinator();
  NodeCoordinator(const NodeCoordinator&) = delete;
  NodeCoordinator& operator=(const NodeCoordinator&) = delete;

  struct State {
    std::vector<Failure> failures;      // oldest first
    std::optional<Failure> root_cause;  // chosen by node 0
    int ready = 0;                      // nodes that have reached this attempt
    int done = 0;                       // nodes whose ranks have all succeeded
    std::vector<int> lost_nodes;        // without a heartbeat; known to node 0 only
  };

  /// Enters an attempt: state and reports from now on belong to it. Node 0 publishes its number for
  /// nodes that rejoin later (`kAttemptKey`).
  void begin(int attempt);
  State state() const;

  void report(const Failure& failure);
  void report_done();
  /// Node 0 chooses the failure that all nodes report.
  void set_root_cause(const Failure& failure);

  /// Leaves the attempt, and with it the job; node 0, which hosts the store, first waits for the
  /// others, for `limit` at most.
  void leave(std::chrono::duration<double> limit);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace fleet::launch
