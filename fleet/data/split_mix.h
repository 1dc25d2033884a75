// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

namespace fleet {

/// The random numbers of the data folder: SplitMix64 (Steele, Lea, Flood 2014), started from a key.
///
/// The standard library leaves `std::shuffle` and its distributions to each vendor; an order of
/// samples that a snapshot relies on must never change, so every step is spelled out
/// here. Not for dropout masks or for secrets.
///
///   SplitMix64 random({seed, epoch, sample});
///   const bool flip = random.below(2) == 1;
class SplitMix64 {
 public:
  /// Words in another order, or a word more, give an unrelated sequence.
  SplitMix64(std::initializer_list<int64_t> key) {
    for (const int64_t word : key) {
      state_ = mix(state_ + kGamma) ^ mix(static_cast<uint64_t>(word) + kGamma);
    }
  }

  uint64_t next() { return mix(state_ += kGamma); }

  /// Uniform in [0, bound) without bias: draws below 2^64 mod bound are thrown away.
  uint64_t below(uint64_t bound) {
    const uint64_t rejected = (0 - bound) % bound;
    uint64_t draw = next();
    while (draw < rejected) draw = next();
    return draw % bound;
  }

  /// Uniform in [0, 1), in steps of 2^-53.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  static constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;

  static constexpr uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  uint64_t state_ = 0;
};

}  // namespace fleet
