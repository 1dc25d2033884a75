// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fleet {

/// Which part of a data set, and with that how its samples are prepared.
enum class Phase { kTrain, kTest };

}  // namespace fleet
