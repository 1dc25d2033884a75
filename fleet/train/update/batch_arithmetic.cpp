// SPDX-License-Identifier: Apache-2.0
#include "fleet/train/update/batch_arithmetic.h"

#include "fleet/core/text/format.h"
#include "fleet/core/text/plural.h"

namespace fleet {
namespace {

std::string ranks_text(int64_t ranks) { return plural(ranks, "rank"); }

}  // namespace

std::string BatchArithmetic::text() const {
  if (form == BatchForm::kCalls) {
    auto line = format("global batch = micro-batch x {} accumulated x {}", micro_batches,
                       ranks_text(ranks));
    if (k_steps > 1) {
      line += format(
          "; k_steps {0} accumulates {0} calls of minimize(closure): a micro-batch of N samples "
          "makes a batch of {0} N on each rank, as in the guide",
          k_steps);
    }
    return line;
  }
  const int64_t least = samples / micro_batches;
  const bool is_even = samples % micro_batches == 0 && samples * ranks == global_samples;
  auto line = is_even ? format("global batch {} = micro-batch {} x {} accumulated x {}",
                               global_samples, least, micro_batches, ranks_text(ranks))
                      : format("global batch {} on {}; on this one {} = {} micro-batches of {}",
                               global_samples, ranks_text(ranks), samples, micro_batches,
                               samples % micro_batches == 0 ? format("{}", least)
                                                            : format("{} or {}", least, least + 1));
  if (k_steps > 1) {
    line += format(
        "; k_steps {0} splits the batch of {1} on each rank (in the guide N becomes {0} N: use "
        "minimize(closure), or {0} times the batch size)",
        k_steps, samples);
  }
  return line;
}

}  // namespace fleet
