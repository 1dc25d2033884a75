// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "fleet/core/options/options.h"

namespace fleet::launch {

/// What a soak tries, and for how long. Runs of other seeds add up: a long soak is many short ones.
struct SoakOptions {
  std::string what = "faults";
  int ranks = 2;
  bool elastic = false;
  int count = 20;
  int64_t seed = 1;
  double seconds = 540;
  double minutes = 4;
  std::string rows = {};
};
const FieldList& fields_of(const SoakOptions*);

/// What was tried, how many times, and what was lost. "problems" lists what should not have
/// happened; everything else is a count.
using Row = nlohmann::ordered_json;

/// SIGKILL, SIGSTOP and SIGTERM to ranks and to fleetrun, at random; a job that they end is started
/// again with the same command.
Row soak_faults(const SoakOptions& options);
/// A disk for the snapshots that is full now and then. Needs root.
Row soak_disk(const SoakOptions& options);
/// Two hosts whose link is pulled now and then. Needs root.
Row soak_link(const SoakOptions& options);
/// Bits flipped in the newest of two snapshots, files of it cut short.
Row soak_damage(const SoakOptions& options);
/// Useful updates while a rank is killed every minute, as a share of those of the same job beside
/// it, which nothing disturbs.
Row soak_goodput(const SoakOptions& options);

}  // namespace fleet::launch
