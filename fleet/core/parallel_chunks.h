// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace fleet {

/// How many threads LibTorch gives this thread's work.
int64_t chunk_count();

/// Runs `work(0)` ... `work(chunks - 1)` on LibTorch's own threads, and returns when all are
/// done. The only source that is compiled with OpenMP: without it LibTorch's loop would be
/// serial.
void parallel_chunks(int64_t chunks, const std::function<void(int64_t)>& work);

/// Cuts 0 ... n into one range per thread, of at least `grain_size` each, and runs `work(begin,
/// end)` on all of them at once.
void parallel_ranges(int64_t n, int64_t grain_size,
                     const std::function<void(int64_t, int64_t)>& work);

}  // namespace fleet
