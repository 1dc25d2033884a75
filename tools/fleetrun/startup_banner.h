// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/fleetrun/options.h"

namespace fleet::launch {

/// The two blocks that the guide shows before training starts, without a newline at the end.
///
///   -----------  Configuration Arguments -----------
///   gpus: 0,1
///   ...
std::string configuration_block(const Options& options);

///   +=======================================================================================+
///   |                        Distributed Envs                      Value                    |
///   +---------------------------------------------------------------------------------------+
///   |                     PADDLE_TRAINERS_NUM                        2                      |
///   +=======================================================================================+
///
/// A value of 45 characters or more keeps its end: "... " and the last 41.
std::string environment_table(const std::vector<std::pair<std::string, std::string>>& rows);

}  // namespace fleet::launch
