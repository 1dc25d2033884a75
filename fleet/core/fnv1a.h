// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace fleet {

/// FNV-1a of 64 bits (RFC 9923), byte by byte or number by number: a fingerprint of what should be
/// equal on all ranks or after a restart.
///
///   Fnv1a hash;
///   hash.add("conv1.weight");
///   hash.value();
class Fnv1a {
 public:
  void add(uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001B3; }
  void add(std::string_view text) {
    for (const char c : text) add(uint64_t{static_cast<unsigned char>(c)});
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

}  // namespace fleet
