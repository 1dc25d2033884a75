// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fleet::ops {

/// Random numbers of one site (one call of a random op) in one update: Philox4x32-10 (Salmon et
/// al., SC 2011, doi 10.1145/2063384.2063405) with the seed as its key and (element / 8, sample,
/// site, update) as its counter. Each element has 16 bits, and is kept where they are below
/// `threshold`.
///
/// Of the 64 elements of a block, counters 8 b ... 8 b + 7, element 4 i + q has quarter q of words
/// 0 and 1 of counter i, lower halves first, and element 32 + 4 i + q the same of words 2 and 3.
struct RandomStream {
  uint64_t round_keys[20] = {};  // two for each round, of 32 bits each
  uint32_t site = 0;
  uint32_t update = 0;
  uint32_t first_sample = 0;
  uint32_t threshold = 65536;  // of 65536: how many are kept
  float scale = 1;             // of what is kept

  bool drops() const { return threshold < 65536; }
};

}  // namespace fleet::ops
