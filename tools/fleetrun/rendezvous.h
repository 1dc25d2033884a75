#pragma once

#include "fleet/comm/store.h"

#include "tools/fleetrun/cluster.h"
#include "tools/fleetrun/options.h"
#include "tools/fleetrun/signals.h"

namespace fleet::launch {

/// The store of the job, which node 0's launcher hosts, and every node as it has introduced itself.
struct Rendezvous {
  comm::Store store;
  Cluster cluster;
  int max_restarts = 0;  // node 0's
  int attempt = 0;       // that the job is at: above 0 on a node that has come back
};

/// Brings the launchers of all nodes together; alone on one node it returns at once, with a store
/// that only this machine can reach. Waits at most `options.join_timeout_s` and says every 10 s for
/// whom. Throws Interrupted when the user stops the waiting.
///
/// A node that was lost can be started again with the same flags, as long as node 0 waits for it:
/// it takes its old place.
///
///   auto [store, cluster, max_restarts, attempt] = meet(options, inbox);
Rendezvous meet(const Options& options, SignalInbox& inbox);

}  // namespace fleet::launch
