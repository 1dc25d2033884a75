// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/fleetrun/options.h"
#include "tools/fleetrun/process/worker.h"

namespace fleet::launch {

struct Node {
  std::string address;
  std::vector<std::string> endpoints;  // "address:port" of each of its ranks
};

/// All nodes of the job in rank order, and which one this is. Global ranks count through the nodes,
/// which may have different numbers of ranks.
///
///   cluster.first_rank();   // 3 on node 1 when node 0 has three ranks
struct Cluster {
  int node_rank = 0;
  std::vector<Node> nodes;
  Address master;       // address of the store on node 0
  std::string job_key;  // of the store; empty: none

  const Node& own() const { return nodes[static_cast<size_t>(node_rank)]; }
  int world_size() const;
  /// The global rank of this node's local rank 0.
  int first_rank() const;
};

/// The part of a rank's environment that depends on the attempt.
struct Attempt {
  int number = 0;
  int max_restarts = 0;
  std::string log_dir;  // absolute
};

/// Torchrun's names and Paddle's, the launcher's store and its key, threads, devices; local rank 0
/// also gets the size of the terminal behind its pipe.
Environment worker_environment(const Cluster& cluster, const Options& options,
                               const Attempt& attempt, int local_rank);

/// The rows that the guide's table shows, in its order.
Environment shown_environment(const Environment& environment);

/// Threads that each rank of this node gets: the cores that this process may use over the ranks.
int threads_per_rank(int local_ranks);
/// "1 of 2 cores each", or "64 ranks share 2 cores".
std::string shared_cores(int local_ranks, int cores);

}  // namespace fleet::launch
