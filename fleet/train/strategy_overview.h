// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fleet/train/distributed_strategy.h"

namespace fleet {

/// The guide's table: a block for each switch that is on with its configs, then the fields that
/// have none. Same widths, order and spelling (`True`, `32768.0`, `0.800000011920929`), so that a
/// log can be compared with one of Paddle; Fleet's own fields get a row when they are set. What is
/// not in force has none: a loss scale with bf16.
/// Every line is indented and ended, but for the last, which has no newline.
std::string strategy_overview(const DistributedStrategy& strategy);

/// A double as Python prints it: the shortest digits that mean it, `1e-05` below 1e-4.
std::string python_repr(double number);

}  // namespace fleet
