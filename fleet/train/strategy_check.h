// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fleet/train/distributed_strategy.h"

namespace fleet {

/// What a strategy is to be used with.
struct CheckContext {
  int world_size = 1;
  std::string optimizer_name = {};  ///< "SGD", "Momentum", "Adam", ...; empty: not known yet
  double weight_decay = 0;          ///< the optimizer's own
  bool has_opaque_state = false;    ///< only the optimizer itself can read its state
  bool is_elastic = false;          ///< ranks may be lost and come back (fleetrun --elastic)
};

/// One check, as each strategy's part of it sees it: `StrategyEntry::check`.
struct StrategyCheck {
  void problem(std::string text) { problems.push_back(std::move(text)); }
  void remark(std::string text) { remarks.push_back(std::move(text)); }

  const DistributedStrategy& asked;
  const DistributedStrategy& strategy;  ///< what `asked` is resolved to
  const CheckContext& context;
  std::vector<std::string> problems = {};  ///< any: the strategy is refused
  std::vector<std::string> remarks = {};
};

/// Refuses a strategy that cannot do what it says, with everything that is wrong in one Error:
/// values out of their limits, combinations without a meaning, switches that this version does not
/// have. A switch that is on and could never act is an error; Paddle drops it and continues.
///
/// Returns remarks, to be logged at start: what has no effect as things stand but is no mistake by
/// itself, such as configs of a switch that is off, or fp16_allreduce on one rank. So one file
/// serves any number of ranks, and a switch can be flipped on the command line without taking its
/// configs out of the file.
///
///   for (const auto& remark : check(strategy, {.world_size = 2, .optimizer_name = "Momentum"}))
///     log::info("strategy", remark);
std::vector<std::string> check(const DistributedStrategy& strategy, const CheckContext& context);

}  // namespace fleet
