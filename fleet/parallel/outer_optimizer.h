// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <torch/types.h>

#include "fleet/core/parameter_arena.h"

namespace fleet {

enum class OuterRule { kAverage, kSlowMomentum, kNesterov };

/// Rule and rates of the outer optimizer.
struct OuterOptimizerOptions {
  OuterRule rule = OuterRule::kAverage;
  double lr = 1;          // of the step that follows an average; not for kAverage
  double momentum = 0.5;  // from one average to the next; not for kAverage
};

/// What local SGD makes of an average: a step of its own, which begins where all ranks began (the
/// anchor) and takes d, the mean of what they changed since, as its direction.
///   kAverage       anchor += d, which is the average
///   kSlowMomentum  v = momentum v + d / inner_lr;  anchor += lr inner_lr v
///                  SlowMo, Wang et al., arXiv 1910.00643: lr 1, momentum 0.5
///   kNesterov      v = momentum v + d;  anchor += lr (d + momentum v)
///                  DiLoCo, Douillard et al., arXiv 2311.08105: lr 0.7, momentum 0.9
///
///   OuterOptimizer outer(arena, {.rule = OuterRule::kNesterov, .lr = 0.7, .momentum = 0.9});
///   outer.step(anchor, change, optimizer.lr());
class OuterOptimizer {
 public:
  OuterOptimizer(const ParameterArena& arena, const OuterOptimizerOptions& options);

  /// One tensor per group of the arena. Where `inner_lr` is 0, slow momentum only averages.
  void step(const std::vector<torch::Tensor>& anchor, const std::vector<torch::Tensor>& change,
            double inner_lr);

  /// Empty for kAverage.
  const std::vector<torch::Tensor>& velocity() const { return velocity_; }

 private:
  OuterOptimizerOptions options_;
  std::vector<torch::Tensor> velocity_;
};

}  // namespace fleet
