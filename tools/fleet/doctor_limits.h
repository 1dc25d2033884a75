// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "tools/fleet/finding.h"

namespace fleet::tool {

/// A limit of the system, with what the user may raise it to.
struct Limit {
  int64_t soft = 0;
  int64_t hard = 0;
};

/// Whether `ranks` ranks on this machine get by with this many open files in each process: fleetrun
/// needs some for each rank, and a rank some for each of the others.
Finding descriptors_finding(const Limit& limit, int64_t ranks);
/// Of this process.
Finding descriptors_finding(int64_t ranks);

/// The same for processes and threads: by the limit of the user, whose `used` count already, and
/// by the control groups under `root`.
Finding processes_finding(const Limit& limit, int64_t used, int64_t ranks, int64_t threads_each,
                          const std::string& root);
Finding processes_finding(int64_t ranks, const std::string& root = "/");

}  // namespace fleet::tool
