// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "fleet/applications/application.h"
#include "fleet/applications/data/image_data.h"
#include "fleet/applications/image_metrics.h"
#include "fleet/core/model_handle.h"
#include "fleet/train/program/run_options.h"
#include "fleet/train/program/train_config.h"

namespace fleet::applications {

/// What a program trains on images with.
struct ImageProgram {
  TrainConfig config;
  RunOptions run;
  ImageDataOptions images;  ///< with the sizes that belong to the data
  ImageData data;
};

/// The beginning of such a program: reads its command line, meets the other ranks, sets the seed
/// and loads the data. `own`: the program's own groups of flags, before those of data and run.
///
///   Options own;
///   auto [config, run, images, data] =
///       start_image_program(argc, argv, {{"Model", own}}, {.lr = 0.1}, {.about = "trains a net"});
ImageProgram start_image_program(int argc, const char* const* argv, std::vector<FlagGroup> own,
                                 const TrainConfig& defaults, ProgramHelp help);

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
