// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "fleet/train/distributed_strategy.h"

namespace fleet {

/// What the command line and its strategy file ask of a strategy. The program has the last word,
/// and may replace it: then the flag does nothing, and the start says so.
///
/// `parse_train_configs` keeps the last command line of the process; any thread may ask.
void keep_command_line_strategy(const DistributedStrategy& asked,
                                const DistributedStrategy& defaults);

/// A line for each field that the command line changed and the program has changed again:
/// "lars_configs.lars_coeff = 0.5 of the command line is not in force: the program sets 0.001".
std::vector<std::string> overridden_by_program(const DistributedStrategy& in_program);

}  // namespace fleet
