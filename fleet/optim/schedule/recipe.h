// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fleet/optim/schedule/schedule.h"

namespace fleet::optim {

/// What a recipe is scaled to.
struct RecipeOptions {
  int64_t global_batch = 0;  // samples of one update, on all ranks; 0: the one that was published

  // LARS recipes count in epochs and need one of these.
  int64_t updates_per_epoch = 0;
  int64_t samples_per_epoch = 0;  // a last short batch counts as an update

  int64_t epochs = 0;  // LARS recipes only; 0: what was published
};

/// Published large-batch settings, ready for use.
struct Recipe {
  Schedule schedule;
  double peak_lr = 0;
  double momentum = 0;  // beta1 for LAMB
  double weight_decay = 0;
  int64_t warmup_updates = 0;
  int64_t total_updates = 0;
  std::string source;  // who published it, and which row was taken
};

/// The recipe of that name; docs/strategies/schedules.md has the numbers and where they are from.
///
/// | name | for |
/// |---|---|
/// | `lars-mlperf` | LARS, ResNet50, any batch: the reference's own choice; needs `epochs` |
/// | `lars-nvidia` | LARS, ResNet50, from batch 3264: the nearest published row that is not above |
/// | `lamb-paper` | LAMB, BERT large, batch 512 to 32768 |
/// | `lamb-nvidia-phase1`, `lamb-nvidia-phase2` | LAMB, BERT large, batch 65536, then 32768 |
///
///   const auto lars = recipe("lars-mlperf",
///       {.global_batch = 8192, .samples_per_epoch = 1281167, .epochs = 64});
///   log("[train] {} ({})", lars.schedule.describe(), lars.source);
///   optimizer.set_lr(lars.schedule(optimizer.steps()));
Recipe recipe(std::string_view name, const RecipeOptions& options = {});

std::vector<std::string> recipe_names();

}  // namespace fleet::optim
