// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <latch>

namespace fleet::testing {

/// Counts a latch down when it goes out of scope, whatever was thrown: others wait for it.
///
///   const CountDown has_failed(latch);
struct CountDown {
  explicit CountDown(std::latch& latch) : latch(latch) {}
  ~CountDown() { latch.count_down(); }
  CountDown(const CountDown&) = delete;
  CountDown& operator=(const CountDown&) = delete;

  std::latch& latch;
};

}  // namespace fleet::testing
