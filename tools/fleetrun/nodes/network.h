// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fleet::launch {

/// Numeric addresses of this machine's interfaces that are up.
std::vector<std::string> own_addresses();

/// The index of this machine in `ips` (names or addresses); an Error shows both lists.
int own_position(const std::vector<std::string>& ips);

/// Ports without a listener.
std::vector<uint16_t> free_ports(size_t count);

}  // namespace fleet::launch
