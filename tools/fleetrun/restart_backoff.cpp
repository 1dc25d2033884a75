// SPDX-License-Identifier: Apache-2.0
#include "tools/fleetrun/restart_backoff.h"

#include <algorithm>

namespace fleet::launch {

void RestartBackoff::count(std::chrono::duration<double> lasted) {
  in_a_row_ = lasted < kAtOnce ? in_a_row_ + 1 : 0;
}

std::chrono::seconds RestartBackoff::next() const {
  constexpr int kMaxDoublings = 10;
  if (in_a_row_ < 2) return std::chrono::seconds(0);
  return std::min(std::chrono::seconds(1 << std::min(in_a_row_ - 2, kMaxDoublings)), kLongest);
}

}  // namespace fleet::launch
