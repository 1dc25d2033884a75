// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/process/training_devices.h"

namespace fleet {

std::vector<c10::DeviceType> training_devices() { return {c10::DeviceType::CPU}; }

}  // namespace fleet
