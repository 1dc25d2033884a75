// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/passes/gradient_health.h"

#include <cmath>

#include "fleet/ops/update/update_kernels.h"

namespace fleet::optim {
namespace {

double square_sum_by_ops(const torch::Tensor& gradient) {
  return gradient.to(torch::kDouble).square().sum().item<double>();
}

}  // namespace

GradientHealth gradient_health(const ParameterArena& arena, const ArenaBlocks& blocks) {
  const torch::NoGradGuard no_grad;
  const auto& kernels = ops::update_kernels();
  GradientHealth health;
  health.block_sums.resize(blocks.count());
  auto& sums = health.block_sums;
  for (size_t g = 0; g < arena.groups().size(); ++g) {
    const auto& gradients = arena.groups()[g].gradients;
    const auto range = blocks.of_group(g);
    if (is_fused(arena.groups()[g])) {
      const auto* const data = gradients.const_data_ptr<float>();
      blocks.for_each(range, [&](size_t i) {
        sums[i] = kernels.square_sum(data + blocks[i].begin, blocks[i].length);
      });
    } else {
      for (size_t i = range.first; i < range.last; ++i) {
        sums[i] = square_sum_by_ops(gradients.narrow(0, blocks[i].begin, blocks[i].length));
      }
    }
  }
  double sum = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    sum += sums[i];
    if (!health.first_bad && !std::isfinite(sums[i])) health.first_bad = blocks[i].span;
  }
  health.norm = std::sqrt(sum);
  return health;
}

}  // namespace fleet::optim
