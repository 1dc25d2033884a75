// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/non_finite.h"

#include "fleet/core/text/format.h"

namespace fleet {

Error non_finite_loss(const TrainingStack& stack, double loss) {
  return Error("minimize",
               format("the loss is {} at update {} on rank {}; nothing was updated", loss,
                      stack.updates() + 1, stack.comm->rank()),
               "lower the learning rate, warm it up, or look for bad samples");
}

Error non_finite_gradient(const TrainingStack& stack, const std::string& name) {
  const bool is_half = stack.strategy.fp16_allreduce && stack.shares_gradients();
  return Error(
      "minimize",
      format("the gradient of '{}' is not finite, though the loss is; nothing was updated", name),
      is_half ? "gradients may have left the range of half (65504) on their way: switch "
                "fp16_allreduce off; else lower the learning rate, or look for a "
                "division by 0"
              : "lower the learning rate, warm it up, or look for a division by 0 or a "
                "root of 0 in the model");
}

}  // namespace fleet
