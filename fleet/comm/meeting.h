#pragma once

#include <chrono>
#include <string>

#include "fleet/comm/store.h"

namespace fleet::comm {

/// Waits up to `limit` until all `size` ranks have called this with the same table, and returns
/// those that did not come, as " 1 3"; empty when all are there. A table serves for one meeting.
///
///   auto table = store.prefixed("start");
///   if (const auto missing = meet(table, rank, size, 30s); !missing.empty()) throw ...;
std::string meet(Store table, int rank, int size, std::chrono::milliseconds limit);

}  // namespace fleet::comm
