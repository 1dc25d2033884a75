// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <vector>

#include "fleet/comm/rendezvous/store/store.h"
#include "fleet/comm/rendezvous/wait_notice.h"

namespace fleet::comm {

/// Waits up to `limit` until all `size` ranks have called this with the same table, and returns the
/// ranks that did not arrive; `notice` logs the wait. A table serves for one barrier.
///
///   WaitNotice notice("init", 30s);
///   const auto missing = store_based_barrier(store.prefixed("start"), rank, size, 30s, notice);
///   if (!missing.empty()) throw ...;
std::vector<int> store_based_barrier(Store table, int rank, int size,
                                     std::chrono::milliseconds limit, WaitNotice& notice);

}  // namespace fleet::comm
