// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <c10/core/DeviceType.h>

namespace fleet {

/// The kinds of devices that this build trains on, in order of preference. What a launcher or a
/// program asks for beyond these is refused by name, never trained elsewhere in silence.
std::vector<c10::DeviceType> training_devices();

}  // namespace fleet
