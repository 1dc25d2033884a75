// SPDX-License-Identifier: Apache-2.0
#include "fleet/data/shard.h"

#include "fleet/comm/world.h"
#include "fleet/core/error.h"
#include "fleet/core/text/format.h"

namespace fleet {

Shard resolve_shard(std::optional<int64_t> rank, std::optional<int64_t> world_size) {
  if (rank && world_size) return {*rank, *world_size};
  if (world_size == 1) return {0, 1};
  if (rank || world_size) {
    throw Error("data",
                rank ? format("rank is {}, and world_size is not given", *rank)
                     : format("world_size is {}, and rank is not given", *world_size),
                "give both, or neither: then they are those of fleet::init");
  }
  if (is_initialized()) return {worker_index(), worker_num()};
  const auto role = RoleMaker::from_environment();
  if (role.world_size > 1) {
    throw Error("data",
                format("a loader was made outside of fleet::init() and fleet::shutdown() in rank "
                       "{} of {} ({}): every rank would train on the same samples",
                       role.rank, role.world_size, role.source),
                "call fleet::init() before loaders are made, or give them rank and world_size");
  }
  return {};
}

}  // namespace fleet
