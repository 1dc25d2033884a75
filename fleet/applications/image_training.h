// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "fleet/applications/application.h"
#include "fleet/applications/data/image_data.h"
#include "fleet/applications/image_metrics.h"
#include "fleet/core/model_handle.h"
#include "fleet/train/program/run_options.h"
#include "fleet/train/program/train_config.h"

namespace fleet::applications {

/// A model as train_on_images sees it.
struct ImageModel {
  ModelHandle handle;
  std::function<ImageMetrics(const Batch&)> metrics;
};

/// Epochs over images with Momentum: up to `config.lr` and down along a cosine, the guide's lines
/// (TrainingLog), and a test after every epoch over all ranks. `weight_decay` is Momentum's; LARS
/// has its own.
///
///   [Epoch 0, batch 5] loss: 1.01921, acc1: 0.00000, acc5: 0.06250
///   [test] epoch 0: loss 2.10533, acc1 0.31200, acc5 0.82100, 1000 images
void train_on_images(const ImageModel& model, ImageData& data, double weight_decay,
                     const TrainConfig& config, const RunOptions& run);

/// The same for an application, whose checkpoints recompute takes where none are named.
///
///   auto model = Resnet50();
///   train_on_images(model, data, /*weight_decay=*/1e-4, config, run);
template <typename Impl>
void train_on_images(const Application<Impl>& model, ImageData& data, double weight_decay,
                     TrainConfig config, const RunOptions& run) {
  config.strategy = model.with_checkpoints(config.strategy);
  train_on_images({model, [&](const Batch& micro_batch) { return model.metrics(micro_batch); }},
                  data, weight_decay, config, run);
}

}  // namespace fleet::applications
