// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "fleet/core/parameter_arena.h"
#include "fleet/optim/passes/arena_blocks.h"

namespace fleet::optim {

struct ClippingInput {
  double max_norm = 0;                       // 0: no clipping
  double gradient_scale = 1;                 // times every gradient in the arena
  std::optional<double> gradient_norm = {};  // of the gradients in the arena, if known
};

/// What gradients are multiplied with so that their norm is at most `max_norm`, as torch's
/// clip_grad_norm_. One pass over the gradients where their norm is not known. Throws, in the name
/// of `optimizer`, when a gradient is not finite.
double clipping_factor(std::string_view optimizer, const ParameterArena& arena,
                       const ArenaBlocks& blocks, const ClippingInput& input);

}  // namespace fleet::optim
