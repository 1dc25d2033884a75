// SPDX-License-Identifier: Apache-2.0
#include "fleet/core/parallel_chunks.h"

#include <algorithm>

#include <ATen/Parallel.h>

namespace fleet {

int64_t chunk_count() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

void parallel_chunks(int64_t chunks, const std::function<void(int64_t)>& work) {
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(i);
  });
}

void parallel_ranges(int64_t n, int64_t grain_size,
                     const std::function<void(int64_t, int64_t)>& work) {
  const auto chunks = std::clamp<int64_t>(n / std::max<int64_t>(grain_size, 1), 1, chunk_count());
  parallel_chunks(chunks,
                  [&](int64_t chunk) { work(n * chunk / chunks, n * (chunk + 1) / chunks); });
}

}  // namespace fleet
