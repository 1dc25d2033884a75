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

}  // namespace fleet
