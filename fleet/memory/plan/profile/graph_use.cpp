// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/plan/profile/graph_use.h"

#include "fleet/core/torch/interception.h"

namespace fleet::memory {

void BackwardCounter::begun() {
  if (is_forward_) return;
  ++backwards_;
  if (compat::current_backward_keeps_graph()) is_kept_ = true;
}

GraphUse BackwardCounter::use() const {
  return {.backwards = std::max(backwards_.load(), 1), .is_kept = is_kept_};
}

}  // namespace fleet::memory
