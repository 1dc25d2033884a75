// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Everything that a training program uses, by topic. A header that is needed alone can be included
/// alone.

// Start and end of a program: ranks, command line, errors, log.
#include "fleet/comm/role_maker.h"
#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/process/stop_request.h"
#include "fleet/core/text/format.h"
#include "fleet/train/program/run_options.h"
#include "fleet/train/program/train_config.h"

// Training: a strategy, an optimizer over it, epochs, snapshots.
#include "fleet/ops/fast_ops.h"
#include "fleet/snapshot/snapshots.h"
#include "fleet/train/distributed_optimizer.h"
#include "fleet/train/distributed_strategy.h"
#include "fleet/train/memory_budget.h"
#include "fleet/train/program/train_epochs.h"
#include "fleet/train/program/training_log.h"

// Optimizers and learning-rate schedules.
#include "fleet/optim/adam.h"
#include "fleet/optim/lamb.h"
#include "fleet/optim/lars.h"
#include "fleet/optim/momentum.h"
#include "fleet/optim/schedule/recipe.h"
#include "fleet/optim/schedule/schedule.h"
#include "fleet/optim/sgd.h"
#include "fleet/optim/torch_optimizer_name.h"

// Data: batches, loaders, images, text.
#include "fleet/data/batch.h"
#include "fleet/data/data_loader.h"
#include "fleet/data/images/fashion_mnist.h"
#include "fleet/data/images/imagenet.h"
#include "fleet/data/text/masked_text.h"
#include "fleet/data/text/parallel_text.h"

// Weights on disk.
#include "fleet/io/weights.h"

// Metrics and progress.
#include "fleet/metrics/accuracy.h"
#include "fleet/metrics/progress.h"
#include "fleet/metrics/step_line.h"
#include "fleet/metrics/unigram.h"
#include "fleet/metrics/weighted_mean.h"

// Applications: models with their data and loss.
#include "fleet/applications/applications.h"
#include "fleet/applications/bert_training.h"
#include "fleet/applications/data/image_data.h"
#include "fleet/applications/data/synthetic_data.h"
#include "fleet/applications/data/synthetic_image_batch.h"
#include "fleet/applications/image_training.h"
#include "fleet/applications/transformer_training.h"

// Single strategies, for use without distributed_optimizer.
#include "fleet/comm/communicator.h"
#include "fleet/core/parameter_arena.h"
#include "fleet/memory/checkpoint.h"
#include "fleet/memory/recompute.h"
#include "fleet/parallel/data_parallel.h"
#include "fleet/parallel/local_sgd.h"
#include "fleet/parallel/sync_batch_norm.h"
#include "fleet/precision/autocast.h"
#include "fleet/precision/grad_scaler.h"
