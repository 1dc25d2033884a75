#pragma once

#include <functional>

#include <torch/nn/module.h>

#include "fleet/applications/image_data.h"
#include "fleet/applications/image_metrics.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/run_options.h"
#include "fleet/train/train_config.h"

namespace fleet::applications {

/// Epochs over images: up to `config.lr` and down along a cosine, the guide's lines (TrainingLog),
/// and a test after every epoch over all ranks.
///
///   [Epoch 0, batch 5] loss: 1.01921, acc1: 0.00000, acc5: 0.06250
///   [test] epoch 0: loss 2.10533, acc1 0.31200, acc5 0.82100, 1000 images
///
///   train_on_images(*model, [&](const Batch& part) { return model.metrics(part); }, data,
///   optimizer,
///                   config, run);
void train_on_images(torch::nn::Module& model,
                     const std::function<ImageMetrics(const Batch&)>& metrics, ImageData& data,
                     DistributedOptimizer& optimizer, const TrainConfig& config,
                     const RunOptions& run);

}  // namespace fleet::applications
