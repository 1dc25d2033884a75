// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace fleet::memory {

/// One way to run the stages [from, to) of a chain.
struct ChainEdge {
  int from = 0, to = 0;
  int64_t held = 0;       // bytes that stay from its forward until its backward is over
  int64_t offloaded = 0;  // bytes offloaded, and resident for two more edges before and after that
  int64_t need = 0;       // bytes it takes itself at its peak, what it holds included
  double seconds = 0;     // more than if everything was kept
};

struct ChainPath {
  bool is_feasible = false;
  double seconds = 0;
  int64_t peak = 0;        // of what the edges say
  std::vector<int> edges;  // that it takes, in order
};

/// The quickest path from stage 0 to `stages` that never takes more than `limit` bytes: at each
/// edge, what the edges before it hold and what it needs itself.
///
/// Exact while nothing is offloaded, no stage has more than `max_labels` trade-offs between time
/// and memory, and no more than eight times as many ways lead to one. Of more trade-offs those are
/// followed that lie nearest to the best mixes of others, and of more ways the quickest in each
/// class of about equal bytes. A path that takes more than `seconds_limit` is not looked for. Bytes
/// that are offloaded in one and in two edges are treated as one, so that a better path may be
/// missed. The result always fits. O(edges x labels).
ChainPath search_chain(int stages, const std::vector<ChainEdge>& edges, int64_t limit,
                       size_t max_labels = 2000,
                       double seconds_limit = std::numeric_limits<double>::infinity());

}  // namespace fleet::memory
