// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fleet/optim/optimizer.h"
#include "fleet/train/distributed_strategy.h"

namespace fleet {

/// The optimizer that `strategy.lars` or `strategy.lamb` makes of the user's: Momentum becomes
/// LARS, Adam or AdamW becomes LAMB, with its rates, betas, clipping and groups. Without either
/// switch it is the user's own. The strategy has been checked: the optimizer is of the right kind;
/// its `lamb_weight_decay` becomes the one in force.
std::unique_ptr<optim::Optimizer> layer_wise_optimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                                       DistributedStrategy& strategy);

/// The weight decay that the user's optimizer has by itself: under lars or lamb it would count
/// twice.
double own_weight_decay(const optim::Optimizer& optimizer);

}  // namespace fleet
