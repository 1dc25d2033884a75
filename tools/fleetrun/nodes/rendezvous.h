// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fleet/comm/rendezvous/store/store.h"

#include "tools/fleetrun/nodes/cluster.h"
#include "tools/fleetrun/options.h"
#include "tools/fleetrun/process/signals.h"

namespace fleet::launch {

/// The store of the job, hosted by node 0's launcher, and all nodes as they have published
/// themselves.
struct Rendezvous {
  comm::Store store;
  Cluster cluster;
  int max_restarts = 0;  // node 0's
  int attempt = 0;       // of the job: above 0 on a node that rejoins
};

/// Rendezvous of the launchers of all nodes; on a single node it returns at once, with a store that
/// only this machine can reach. Waits at most `options.join_timeout_s` and logs the missing nodes
/// every 10 s. Throws Interrupted when the user stops it.
///
/// A lost node can be restarted with the same flags while node 0 waits for it: it gets its ranks
/// back.
///
///   auto [store, cluster, max_restarts, attempt] = join_rendezvous(options, inbox);
Rendezvous join_rendezvous(const Options& options, SignalInbox& inbox);

}  // namespace fleet::launch
