// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fleet {

/// The most memory that this process has had in RAM so far, in bytes: what the system counts, code
/// and libraries among it.
int64_t peak_resident_bytes();
/// What it has now.
int64_t resident_bytes();

}  // namespace fleet
