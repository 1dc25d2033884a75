// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/fleet/background.h"
#include "tools/fleet/clock_exchange.h"
#include "tools/fleet/finding.h"

namespace fleet::tool {

/// "host", "host:port", "[::1]:port"; port 0: none was given.
struct Peer {
  std::string host;
  int port = 0;

  /// Nothing for what is none.
  static std::optional<Peer> parse(const std::string& text);
};

/// Throws a UsageError that names all that are none.
std::vector<Peer> parse_peers(const std::vector<std::string>& texts);

/// Whether rank 0 or fleetrun could listen at this port now. `root`: where /proc is, for tests.
Finding port_finding(int port, const std::string& root = "/");

Finding clock_finding(const std::string& peer, const ClockDifference& clock);

/// What the network says, asked for in the background: names may take long.
///
///   NetworkFindings network(parse_peers({"node2:29600"}), deadline);
///   ...
///   for (const auto& finding : network.wait()) print(finding);
class NetworkFindings {
 public:
  NetworkFindings(const std::vector<Peer>& peers, std::chrono::steady_clock::time_point deadline);

  std::vector<Finding> wait();

 private:
  std::chrono::steady_clock::time_point deadline_;
  std::string own_name_;
  Background<Finding> own_;
  std::vector<Peer> peers_;
  std::vector<Background<std::vector<Finding>>> answers_;
};

}  // namespace fleet::tool
