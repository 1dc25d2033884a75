// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the pages take for granted. Declared, never defined: their blocks are compiled, not linked.

#include <torch/nn.h>
#include <torch/optim.h>

#include "fleet/fleet.h"

namespace docs {

extern fleet::TrainConfig config;
extern fleet::DistributedStrategy strategy;
extern fleet::DistributedOptimizer optimizer;
extern fleet::Snapshots snapshots;

extern torch::nn::Sequential net;
extern fleet::applications::Resnet model;
torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& target);
torch::Tensor loss(const fleet::Batch& batch);
double evaluate(torch::nn::Sequential& net);

extern fleet::Batch batch, small;
extern decltype(fleet::load_imagenet_from_file({})) data, train, test;
extern int64_t epoch, epochs;

}  // namespace docs
