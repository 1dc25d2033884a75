// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/program/run_options.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/io/atomic_file.h"
#include "fleet/io/output_check.h"
#include "fleet/io/safetensors.h"
#include "fleet/io/weights.h"

namespace fleet {

namespace {

// Whatever a run has read, and much else: a strategy, a vocabulary, a list. Weights are replaced,
// those of the last run among them.
void check_is_no_other_file(const OutputPlace& place) {
  std::error_code none;
  const auto path = link_target(place.path);
  if (!std::filesystem::is_regular_file(path, none) || std::filesystem::file_size(path, none) == 0)
    return;
  try {
    const SafetensorsFile file(path);
  } catch (const Error& error) {
    throw UsageError(place.area,
                     format("{} {} is there and is no file of weights: it would be lost\n  {}",
                            place.flag, place.path.string(), error.what()),
                     format("give another {}, or remove that file", place.flag));
  }
}

}  // namespace

int64_t RunOptions::updates(int64_t available) const {
  return max_updates > 0 ? std::min(max_updates, available) : available;
}

int64_t RunOptions::warmup_updates(int64_t updates) const {
  return std::llround(warmup * static_cast<double>(updates));
}

void RunOptions::load(const ModelHandle& model) const {
  if (!save.empty() && world()->index() == 0) {
    const OutputPlace place{save, "--save", "weights"};
    check_overwrites_nothing({place}, {{weights, "the file of --weights"}});
    check_is_no_other_file(place);
    check_output_file(place, weights_bytes(model));
  }
  if (weights.empty()) return;
  load_weights(model, weights);
  log::info("weights", format("started from {}", weights));
}

void RunOptions::save_weights(const ModelHandle& model) const {
  if (save.empty()) return;
  if (world()->index() == 0) fleet::save_weights(model, save);
  output_written("--save");
  log::info("weights", format("written to {}", save));
}

const FieldList& fields_of(const RunOptions*) {
  using R = RunOptions;
  static const FieldList list{
      .area = "run",
      .fields = {
          field<&R::log_every>("log_every", "updates between two log lines")
              .at_least(1)
              .in_unit("updates"),
          field<&R::max_updates>("max_updates", "stop after this many updates; 0: after all epochs")
              .at_least(0)
              .in_unit("updates"),
          field<&R::warmup>(
              "warmup", "warmup ratio: fraction of updates with rising learning rate, up to --lr")
              .at_least(0)
              .below(1),
          field<&R::weights>("weights", "safetensors file to start from; see fleet convert"),
          field<&R::save>("save", "safetensors file to write the trained weights to"),
      }};
  return list;
}

}  // namespace fleet
