// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/global_batch.h"

#include <algorithm>

#include "fleet/core/text/format.h"

namespace fleet {

std::string global_batch_advice(int64_t global_batch, int64_t world_size) {
  const auto ranks = [](int64_t number) {
    return format("{} rank{}", number, number == 1 ? "" : "s");
  };
  if (global_batch < 1) return "take another snapshot; this one is damaged";
  if (global_batch % world_size == 0) {
    const auto batch = global_batch / world_size;
    return format("use --batch_size {0}: {0} x {1} keep the global batch of {2}", batch,
                  ranks(world_size), global_batch);
  }
  int64_t fewer = std::min(world_size, global_batch), more = world_size;
  while (global_batch % fewer != 0) --fewer;
  while (more < global_batch && global_batch % more != 0) ++more;
  auto text = format("{} cannot split the global batch of {}: start {} with --batch_size {}",
                     ranks(world_size), global_batch, ranks(fewer), global_batch / fewer);
  if (more <= global_batch)
    text += format(", or {} with --batch_size {}", ranks(more), global_batch / more);
  return text;
}

}  // namespace fleet
