#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/fleetrun/options.h"

namespace fleet::launch {

/// Numeric addresses of this machine's interfaces that are up.
std::vector<std::string> own_addresses();

/// The position in `ips` (names or addresses) of this machine; an error shows both lists.
int own_position(const std::vector<std::string>& ips);

/// The address from which this machine reaches `peer`: the one that others can reach it at.
std::string address_towards(const Address& peer);

/// Ports that nobody listens at now.
std::vector<uint16_t> free_ports(size_t count);

}  // namespace fleet::launch
