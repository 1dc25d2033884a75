#pragma once

#include <cstdint>
#include <functional>

namespace fleet {

/// How many threads the engine gives this thread's work.
int64_t share_count();

/// Runs `work(0)` ... `work(shares - 1)` on the engine's own threads, and returns when all are
/// done. The only source that is compiled with OpenMP: without it the engine's loop would be
/// serial.
void parallel_shares(int64_t shares, const std::function<void(int64_t)>& work);

/// Cuts 0 ... n into one range per thread, of at least `least` each, and runs `work(begin, end)` on
/// all of them at once.
void parallel_ranges(int64_t n, int64_t least, const std::function<void(int64_t, int64_t)>& work);

}  // namespace fleet
