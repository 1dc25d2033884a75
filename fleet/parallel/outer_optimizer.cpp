// SPDX-License-Identifier: Apache-2.0
#include "fleet/parallel/outer_optimizer.h"

#include <cmath>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

OuterOptimizer::OuterOptimizer(const ParameterArena& arena, const OuterOptimizerOptions& options)
    : options_(options) {
  if (options.rule == OuterRule::kAverage) return;
  if (!(std::isfinite(options.lr) && options.lr > 0) ||
      !(options.momentum >= 0 && options.momentum < 1)) {
    throw UsageError("local_sgd",
                     format("an outer step with lr {} and momentum {} has no effect, or diverges",
                            options.lr, options.momentum),
                     "give an lr above 0 and a momentum of at least 0 and below 1");
  }
  const AllocationTag tag(allocation::kLocalSgd);
  velocity_ = arena.make_state();
}

void OuterOptimizer::step(const std::vector<torch::Tensor>& anchor,
                          const std::vector<torch::Tensor>& change, double inner_lr) {
  const torch::NoGradGuard no_grad;
  const auto [rule, lr, momentum] = options_;
  const bool only_averages =
      rule == OuterRule::kAverage || (rule == OuterRule::kSlowMomentum && inner_lr == 0);
  for (size_t g = 0; g < anchor.size(); ++g) {
    if (only_averages) {
      anchor[g].add_(change[g]);
    } else if (rule == OuterRule::kSlowMomentum) {
      velocity_[g].mul_(momentum).add_(change[g], 1 / inner_lr);
      anchor[g].add_(velocity_[g], lr * inner_lr);
    } else {
      velocity_[g].mul_(momentum).add_(change[g]);
      anchor[g].add_(change[g], lr).add_(velocity_[g], lr * momentum);
    }
  }
}

}  // namespace fleet
