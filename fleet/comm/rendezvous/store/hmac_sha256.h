// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace fleet::comm {

/// 256 bits, of a hash (FIPS 180-4) or of a proof that its writer knew a key (RFC 2104).
using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view text);
Digest hmac_sha256(std::string_view key, std::string_view text);

/// Takes equally long wherever two texts of one length differ, so that a proof cannot be guessed
/// byte by byte.
bool equal_in_constant_time(std::string_view a, std::string_view b);

inline std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace fleet::comm
