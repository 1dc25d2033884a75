// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "fleet/core/parameter_arena.h"
#include "fleet/optim/passes/arena_blocks.h"

namespace fleet::optim {

/// Norm and finiteness of an arena's gradients, from one pass that only reads.
struct GradientHealth {
  double norm = 0;  // of all used gradients together; not finite when one of them is not
  std::optional<size_t> first_bad = {};  // the first span with a NaN or an infinity
  std::vector<double> block_sums = {};   // of squares, one per block

  bool is_finite() const { return !first_bad; }
};

/// Unscaling needs no pass: an optimizer multiplies gradients as it reads them. Results do not
/// depend on the number of threads.
///
///   const auto health = gradient_health(arena, blocks);
///   if (health.is_finite()) optimizer.step(used, {.gradient_norm = health.norm});
GradientHealth gradient_health(const ParameterArena& arena, const ArenaBlocks& blocks);

}  // namespace fleet::optim
