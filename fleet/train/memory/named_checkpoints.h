// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "fleet/memory/tape/policies.h"
#include "fleet/train/strategies/recompute.h"

namespace fleet {

/// Cuts at the names of `recompute_configs.checkpoints`. The first forward must name them all, and
/// with `checkpoint_shape` each with that shape.
class NamedCheckpoints final : public memory::NamedCuts {
 public:
  explicit NamedCheckpoints(const RecomputeConfigs& configs);

  /// Throws where the shape is another.
  void on_checkpoint(std::string_view name, const torch::Tensor& x) override;
  /// After the first forward: throws where it did not name one of them. Later calls do nothing.
  void check();

 private:
  std::vector<int64_t> shape_;  // empty: any
  bool is_checked_ = false;
};

}  // namespace fleet
