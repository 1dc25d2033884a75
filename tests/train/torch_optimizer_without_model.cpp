// SPDX-License-Identifier: Apache-2.0
// What a new user writes first. It must not compile, and the compiler must say why.
#include <torch/nn/modules/linear.h>
#include <torch/optim/rmsprop.h>

#include "fleet/train/distributed_optimizer.h"

void train(torch::nn::Linear net) {
  auto optimizer = fleet::distributed_optimizer(torch::optim::RMSprop(net->parameters()));
}
