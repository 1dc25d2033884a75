// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/layer_wise_optimizer.h"

#include "fleet/optim/adam.h"
#include "fleet/optim/momentum.h"

namespace fleet {

std::unique_ptr<optim::Optimizer> layer_wise_optimizer(std::unique_ptr<optim::Optimizer> optimizer,
                                                       DistributedStrategy& strategy) {
  if (!strategy.lars && !strategy.lamb) return optimizer;
  auto made = strategy.lars ? lars_over(*optimizer, strategy.lars_configs)
                            : lamb_over(*optimizer, strategy.lamb_configs);
  made->set_lr(optimizer->lr());
  return made;
}

double own_weight_decay(const optim::Optimizer& optimizer) {
  if (const auto* momentum = dynamic_cast<const optim::Momentum*>(&optimizer)) {
    return momentum->options().weight_decay;
  }
  if (const auto* adam = dynamic_cast<const optim::Adam*>(&optimizer)) {
    return adam->options().weight_decay;
  }
  return 0;
}

}  // namespace fleet
