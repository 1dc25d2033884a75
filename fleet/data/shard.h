// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace fleet {

/// The shard of a data set that a loader yields: that of `rank` among `world_size` ranks.
struct Shard {
  int64_t rank = 0;
  int64_t world_size = 1;
};

/// What a loader's options say, or, where they say nothing, the ranks of fleet::init.
///
/// Every sampler and loader uses it, so that a program that sets no ranks never trains on the same
/// samples twice. Before fleet::init, a process that a launcher started as one of several ranks
/// gets an Error: each rank would take all samples. One option
/// without the other is an Error too; but `world_size` 1 alone means all samples on every rank.
///
///   const auto [rank, world_size] = resolve_shard(options.rank, options.world_size);
Shard resolve_shard(std::optional<int64_t> rank, std::optional<int64_t> world_size);

}  // namespace fleet
