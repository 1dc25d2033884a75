// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>

namespace fleet::memory {

/// How backwards use the graph of one forward.
struct GraphUse {
  int backwards = 1;     // through it
  bool is_kept = false;  // after the first (retain_graph): what is held stays to its end at least

  /// A plan for this use is one for `other` too.
  bool covers(const GraphUse& other) const {
    return backwards >= other.backwards && (is_kept || !other.is_kept);
  }
  void include(const GraphUse& other) {
    backwards = std::max(backwards, other.backwards);
    is_kept |= other.is_kept;
  }
};

/// Counts the backwards through one graph, on whichever threads they run.
///
///   auto counter = std::make_shared<BackwardCounter>();
///   compat::BackwardWatch watch([counter] { counter->begun(); });
///   ...                          // forward
///   counter->forward_ended();    // then as many backwards as the program wants
class BackwardCounter {
 public:
  /// A backward reads the graph. Those inside the forward do not count.
  void begun();
  void forward_ended() { is_forward_ = false; }
  /// So far.
  GraphUse use() const;

 private:
  std::atomic<bool> is_forward_{true};
  std::atomic<int> backwards_{0};
  std::atomic<bool> is_kept_{false};
};

}  // namespace fleet::memory
