// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fleet::comm {

/// As users know the machine.
std::string host_name();

/// Equal on processes that share a kernel and a pid namespace.
std::string host_id();

}  // namespace fleet::comm
