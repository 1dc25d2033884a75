// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/rendezvous/store_based_barrier.h"

#include <algorithm>
#include <numeric>

#include "fleet/core/text/format.h"

namespace fleet::comm {

std::vector<int> store_based_barrier(Store table, int rank, int size,
                                     std::chrono::milliseconds limit, WaitNotice& notice) {
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  const auto key = [](int of) { return format("arrived/{}", of); };
  table.set(key(rank), "1");
  const auto deadline = Clock::now() + limit;
  std::vector<int> missing(static_cast<size_t>(size));
  std::iota(missing.begin(), missing.end(), 0);
  while (!missing.empty()) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const auto slice = std::min(left, notice.until_next());
    if (slice > milliseconds(0) && table.wait_for(key(missing.front()), slice)) {
      missing.erase(missing.begin());
      continue;
    }
    // A question without a time limit: a rank that is there must not be missed.
    std::erase_if(missing, [&](int other) { return table.try_get(key(other)).has_value(); });
    if (missing.empty() || left <= milliseconds(0)) break;
    notice.log_if_due(ranks_text(missing));
  }
  return missing;
}

}  // namespace fleet::comm
