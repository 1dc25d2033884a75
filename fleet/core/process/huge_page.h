// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace fleet {

/// Bytes of a huge page of x86-64 and, by default, of Linux on ARM.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20U;

}  // namespace fleet
