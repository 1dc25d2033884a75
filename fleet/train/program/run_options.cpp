// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/program/run_options.h"

#include <algorithm>
#include <cmath>

#include "fleet/comm/world.h"
#include "fleet/core/log.h"
#include "fleet/core/text/format.h"
#include "fleet/io/output_check.h"
#include "fleet/io/weights.h"

namespace fleet {

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
    check_output_file(place, weights_bytes(model));
  }
  if (weights.empty()) return;
  load_weights(model, weights);
  log::info("weights", format("started from {}", weights));
}

void RunOptions::keep(const ModelHandle& model) const {
  if (save.empty()) return;
  if (world()->index() == 0) save_weights(model, save);
  log::info("weights", format("written to {}", save));
}

const FieldList& fields_of(const RunOptions*) {
  using R = RunOptions;
  static const FieldList list{
      .area = "run",
      .fields = {
          field<&R::log_every>("log_every", "a line for every so many updates")
              .at_least(1)
              .in_unit("updates"),
          field<&R::max_updates>("max_updates", "end after so many, whatever the epochs; 0: do not")
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
