// SPDX-License-Identifier: Apache-2.0
#include "fleet/optim/schedule/recipe.h"

#include <array>
#include <cmath>

#include "fleet/core/error.h"
#include "fleet/core/text/format.h"
#include "fleet/core/text/nearest_name.h"
#include "fleet/optim/option_checks.h"

namespace fleet::optim {
namespace {

using Problems = std::vector<std::string>;

void throw_if_any(std::string_view name, const Problems& problems) {
  if (problems.empty()) return;
  throw UsageError::all("schedule", format("recipe '{}' cannot be made:", name), problems);
}

// A LARS recipe: linear warm-up from 0, then power 2 down to 1e-4, as MLPerf's rules want it.
struct LarsRow {
  int64_t batch;  // the smallest that the row is for
  double lr;
  int64_t warmup_epochs;
  int64_t epochs;  // 0: not published
  double weight_decay;
  double momentum;
};

// MLPerf's reference chooses the rate and the warm-up only. Its rules allow a weight decay of 1e-4
// times a power of two; 0.9 is the default of its momentum.
constexpr std::array<LarsRow, 3> kMlperf{{
    {1, 10.0, 5, 0, 1e-4, 0.9},
    {16384, 25.0, 5, 0, 1e-4, 0.9},
    {32768, 31.2, 25, 0, 1e-4, 0.9},
}};

constexpr std::array<LarsRow, 4> kNvidia{{
    {3264, 10.5, 2, 37, 5e-5, 0.9},
    {13056, 12.8, 9, 48, 2.5e-5, 0.94},
    {35840, 21.9, 17, 60, 2.5e-5, 0.94},
    {64480, 24.699, 31, 90, 1e-4, 0.951807},
}};

int64_t updates_per_epoch(const RecipeOptions& options, Problems& problems) {
  if (options.updates_per_epoch < 0) {
    problems.push_back(format("updates_per_epoch is {}, below 1", options.updates_per_epoch));
  }
  if (options.samples_per_epoch < 0) {
    problems.push_back(format("samples_per_epoch is {}, below 1", options.samples_per_epoch));
  }
  const bool updates = options.updates_per_epoch != 0;
  const bool samples = options.samples_per_epoch != 0;
  if (updates == samples) {
    problems.push_back(
        format("the recipe counts in epochs, and {} of updates_per_epoch and samples_per_epoch {}",
               updates ? "both" : "none", updates ? "are given" : "is given"));
  }
  if (updates) return options.updates_per_epoch;
  if (options.global_batch < 1) return 0;
  return (options.samples_per_epoch + options.global_batch - 1) / options.global_batch;
}

template <size_t N>
Recipe lars(std::string_view name, const std::array<LarsRow, N>& rows, const RecipeOptions& options,
            std::string source) {
  Problems problems;
  const int64_t per_epoch = updates_per_epoch(options, problems);
  const LarsRow* row = nullptr;
  for (const auto& candidate : rows) {
    if (candidate.batch <= options.global_batch) row = &candidate;
  }
  if (options.global_batch < 1) {
    problems.push_back(format("global_batch is {}, below 1", options.global_batch));
  } else if (row == nullptr) {
    problems.push_back(format("global_batch {} is below the smallest published, {}",
                              options.global_batch, rows[0].batch));
  }
  int64_t epochs = options.epochs;
  if (epochs < 0) {
    problems.push_back(format("epochs is {}, below 1", epochs));
  } else if (epochs == 0 && rows[0].epochs == 0) {
    problems.emplace_back("it does not say how long to train: give epochs");
  } else if (row != nullptr) {
    if (epochs == 0) epochs = row->epochs;
    if (row->warmup_epochs >= epochs) {
      problems.push_back(format("its warm-up of {} epochs is not shorter than the {} in all",
                                row->warmup_epochs, epochs));
    }
  }
  throw_if_any(name, problems);

  const int64_t warm = row->warmup_epochs * per_epoch;
  const int64_t total = epochs * per_epoch;
  // One more than is left, so that the last update is still above the end, as in the reference.
  const auto decay =
      polynomial({.lr = row->lr, .end_lr = 1e-4, .power = 2, .updates = total - warm + 1});
  return {.schedule = warmup(warm, decay),
          .peak_lr = row->lr,
          .momentum = row->momentum,
          .weight_decay = row->weight_decay,
          .warmup_updates = warm,
          .total_updates = total,
          .source = std::move(source) + format(", row for batches from {}", row->batch)};
}

// What LAMB recipes do not take; they count in updates.
void expect_no_epochs(const RecipeOptions& options, Problems& problems) {
  const auto refuse_if_given = [&](std::string_view field, int64_t value) {
    if (value != 0) problems.push_back(format("{} is given, and it counts in updates", field));
  };
  refuse_if_given("updates_per_epoch", options.updates_per_epoch);
  refuse_if_given("samples_per_epoch", options.samples_per_epoch);
  refuse_if_given("epochs", options.epochs);
}

// Rate with the square root of the batch, warm-up fraction with the batch, and the same 512
// million samples at every batch: the paper's table in three lines. The warm-up is therefore 3125
// updates at every batch.
Recipe lamb_paper(std::string_view name, const RecipeOptions& options) {
  constexpr int64_t kLargest = 32768;
  constexpr int64_t kSmallest = 512;
  constexpr double kSamples = 512e6;
  const int64_t batch = options.global_batch == 0 ? kLargest : options.global_batch;
  Problems problems;
  expect_no_epochs(options, problems);
  if (batch < kSmallest || batch > kLargest) {
    problems.push_back(format("global_batch {} is outside {}..{}, what was published", batch,
                              kSmallest, kLargest));
  }
  throw_if_any(name, problems);

  const double share = static_cast<double>(batch) / static_cast<double>(kLargest);
  const double lr = sqrt_scaled(5e-3, kLargest, batch);
  const auto total = static_cast<int64_t>(std::llround(kSamples / static_cast<double>(batch)));
  const auto warm = static_cast<int64_t>(std::llround(share / 5 * static_cast<double>(total)));
  return {.schedule = warmup(warm, linear({.lr = lr, .end_lr = 0, .updates = total - warm})),
          .peak_lr = lr,
          .momentum = 0.9,
          .weight_decay = 0.01,
          .warmup_updates = warm,
          .total_updates = total,
          .source = "You et al., arXiv 1904.00962, untuned rule for BERT"};
}

struct BertPhase {
  int phase;
  int64_t batch;
  double lr;
  double warmup_fraction;
  int64_t updates;
};
constexpr BertPhase kPhase1{1, 65536, 6e-3, 0.2843, 7038};
constexpr BertPhase kPhase2{2, 32768, 4e-3, 0.128, 1563};

Recipe lamb_nvidia(std::string_view name, const BertPhase& phase, const RecipeOptions& options) {
  Problems problems;
  expect_no_epochs(options, problems);
  if (options.global_batch != 0 && options.global_batch != phase.batch) {
    problems.push_back(format("global_batch is {}, and it was published for {} only",
                              options.global_batch, phase.batch));
  }
  throw_if_any(name, problems);

  // Not warmup(): theirs ends between two updates, counts from 1, and is not made up for, so that
  // the rate falls at once by the share of the decay that has passed meanwhile.
  const double warm = phase.warmup_fraction * static_cast<double>(phase.updates);
  const auto decay =
      polynomial({.lr = phase.lr, .end_lr = 0, .power = 0.5, .updates = phase.updates});
  const auto rate = [lr = phase.lr, warm, decay](int64_t update) {
    const auto number = static_cast<double>(update + 1);
    return number < warm ? lr * number / warm : decay(update + 1);
  };
  return {.schedule = Schedule(format("warm-up from 0 to {} over {} updates, then {}, both counted "
                                      "from the start, the first update being number 1",
                                      phase.lr, warm, decay.describe()),
                               rate, phase.updates - 1),
          .peak_lr = phase.lr,
          .momentum = 0.9,
          .weight_decay = 0.01,
          .warmup_updates = static_cast<int64_t>(warm),
          .total_updates = phase.updates,
          .source = format("NVIDIA DeepLearningExamples, BERT for PyTorch, phase {}", phase.phase)};
}

}  // namespace

std::vector<std::string> recipe_names() {
  return {"lars-mlperf", "lars-nvidia", "lamb-paper", "lamb-nvidia-phase1", "lamb-nvidia-phase2"};
}

Recipe recipe(std::string_view name, const RecipeOptions& options) {
  if (name == "lars-mlperf") {
    return lars(name, kMlperf, options, "MLPerf training reference, ResNet50 (TensorFlow 2)");
  }
  if (name == "lars-nvidia") {
    return lars(name, kNvidia, options, "NVIDIA, MLPerf training v1.0, ResNet50 (MXNet)");
  }
  if (name == "lamb-paper") return lamb_paper(name, options);
  if (name == "lamb-nvidia-phase1") return lamb_nvidia(name, kPhase1, options);
  if (name == "lamb-nvidia-phase2") return lamb_nvidia(name, kPhase2, options);
  std::string known;
  for (const auto& each : recipe_names()) known += (known.empty() ? "" : ", ") + each;
  throw UsageError("schedule",
                   format("there is no recipe '{}'{}", name, did_you_mean(name, recipe_names())),
                   "use one of " + known);
}

}  // namespace fleet::optim
