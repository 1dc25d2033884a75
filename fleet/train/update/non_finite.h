// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "fleet/core/error.h"
#include "fleet/train/update/training_stack.h"

namespace fleet {

/// For an update without amp, which changed nothing.
Error non_finite_loss(const TrainingStack& stack, double loss);
/// `name`: of the first parameter whose gradient is not finite.
Error non_finite_gradient(const TrainingStack& stack, const std::string& name);

}  // namespace fleet
