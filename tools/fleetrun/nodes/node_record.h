// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/fleetrun/nodes/cluster.h"

namespace fleet::launch {

/// What a node publishes of itself in the store at the rendezvous.
///
///   NodeRecord record{{"10.0.0.1", {"10.0.0.1:6070"}}, /*nodes=*/2, /*max_restarts=*/3};
///   NodeRecord::from_json(record.to_json(), 0).nodes == 2;
struct NodeRecord {
  Node node;
  int nodes = 0;  // that it was started for
  int max_restarts = 0;

  std::string to_json() const;
  /// Of node number `node`. Texts are printable, numbers within the limits of the command line;
  /// anything else is an Error.
  static NodeRecord from_json(const std::string& text, int node);
};

}  // namespace fleet::launch
