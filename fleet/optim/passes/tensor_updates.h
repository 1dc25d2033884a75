// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <vector>

#include <torch/types.h>

#include "fleet/optim/adam.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/sgd.h"

namespace fleet::optim {

/// One parameter as an optimizer without an arena sees it.
struct TensorUpdate {
  torch::Tensor value;
  torch::Tensor gradient;
  std::array<torch::Tensor, 2> state = {};  // float, laid out as `value`
  int64_t updates = 1;                      // of this parameter, the one under way included
  bool is_excluded = false;                 // LARS and LAMB: of decay, and with it of the ratio
};

/// One update of each, by the formulas and kernels of the optimizers of these names, for parameters
/// that stay where they are: `groups`, `max_grad_norm` and names in the options are not looked at.
/// Values of float and below; the sums of LARS and LAMB are in double, by blocks of a fixed size,
/// so that results do not depend on the number of threads.
///
///   adam_update({{.value = w, .gradient = w.grad(), .state = {m, v}}}, {.lr = 1e-3});
void sgd_update(std::span<TensorUpdate> tensors, const SgdOptions& options);
void momentum_update(std::span<TensorUpdate> tensors, const MomentumOptions& options);
void adam_update(std::span<TensorUpdate> tensors, const AdamOptions& options);
void adamw_update(std::span<TensorUpdate> tensors, const AdamWOptions& options);
void lars_update(std::span<TensorUpdate> tensors, const LarsOptions& options);
void lamb_update(std::span<TensorUpdate> tensors, const LambOptions& options);

}  // namespace fleet::optim
