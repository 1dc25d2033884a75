// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "fleet/memory/plan/profile/step_profile.h"

namespace fleet::memory {

/// The ops of a step in groups that do the same work, as those of the blocks of a transformer: of
/// the same name, cost and sizes, with the same ops before and behind them.
std::vector<std::vector<size_t>> equal_ops(const StepProfile& profile);

/// Equal ops get the median of their times, of which there must be three: that removes what other
/// processes added. The times of the whole step change with them.
void share_medians(StepProfile& profile);

/// Of an even number, the mean of the two in the middle.
double median_of(std::vector<double> numbers);

}  // namespace fleet::memory
