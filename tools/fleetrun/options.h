// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fleet/core/options/options.h"

namespace fleet::launch {

struct Address {
  std::string host;
  uint16_t port = 0;
};

/// What the command line of fleetrun says.
///
///   const auto options = parse_options({"--nproc_per_node", "2", "./train", "--lr", "0.1"});
///   options.local_ranks();   // 2
///   options.program;         // "./train", which gets {"--lr", "0.1"}
struct Options {
  int nproc_per_node = 0;  // 0: not given
  std::vector<std::string> gpus = {};
  std::vector<std::string> ips = {"127.0.0.1"};  // empty when the nodes are given by number
  int nnodes = 0;                                // 0: not given
  int node_rank = -1;                            // -1: not given
  std::string master = {};                       // host:port
  int master_port = 29500;
  std::string log_dir = "log";
  int log_keep = 5;
  int max_restarts = 0;
  bool elastic = false;
  int min_ranks = 1;
  double grace_s = 5;
  double save_grace_s = 120;
  double peer_timeout_s = 0;  // 0: not given
  double join_timeout_s = 600;
  std::string job_key_file = {};
  bool no_job_key = false;
  std::string program = {};
  std::vector<std::string> program_args = {};

  /// Ranks on this node: as given, else one per GPU, else one.
  int local_ranks() const;
  int node_count() const;
  /// Nothing when `master` is not host:port.
  std::optional<Address> master_address() const;
};
const FieldList& fields_of(const Options*);

/// Everything from the first word that is not a flag of fleetrun belongs to the program. Throws
/// UsageError with all contradictions at once, and HelpRequested.
Options parse_options(const std::vector<std::string>& words);

/// The name and the value of every option, sorted by name, as the configuration block shows them.
std::vector<std::pair<std::string, std::string>> shown_options(const Options& options);

}  // namespace fleet::launch
