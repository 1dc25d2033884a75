// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/passes/gradient_clipping.h"

#include <algorithm>
#include <cmath>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/optim/passes/gradient_health.h"

namespace fleet::optim {
namespace {

constexpr double kEpsilon = 1e-6;  // clip_grad_norm_'s

double norm_of(std::string_view optimizer, const ParameterArena& arena, const ArenaBlocks& blocks) {
  const auto health = gradient_health(arena, blocks);
  if (health.is_finite()) return health.norm;
  throw Error(optimizer,
              format("the gradient of '{}' is not finite, so there is no norm to clip to; "
                     "nothing was updated",
                     arena.spans()[*health.first_bad].name),
              "lower the learning rate, warm it up, or look for bad samples");
}

}  // namespace

double clipping_factor(std::string_view optimizer, const ParameterArena& arena,
                       const ArenaBlocks& blocks, const ClippingInput& input) {
  if (input.max_norm == 0) return 1;
  const double norm =
      input.gradient_norm ? *input.gradient_norm : norm_of(optimizer, arena, blocks);
  return std::min(1.0, input.max_norm / (norm * std::abs(input.gradient_scale) + kEpsilon));
}

}  // namespace fleet::optim
