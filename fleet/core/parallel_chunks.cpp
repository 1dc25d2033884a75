// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/parallel_chunks.h"

#include <algorithm>

#include <ATen/Parallel.h>

namespace fleet {

int64_t chunk_count() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

void parallel_chunks(int64_t shares, const std::function<void(int64_t)>& work) {
  at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(i);
  });
}

void parallel_ranges(int64_t n, int64_t least, const std::function<void(int64_t, int64_t)>& work) {
  const auto shares = std::clamp<int64_t>(n / std::max<int64_t>(least, 1), 1, chunk_count());
  parallel_chunks(shares,
                  [&](int64_t share) { work(n * share / shares, n * (share + 1) / shares); });
}

}  // namespace fleet
