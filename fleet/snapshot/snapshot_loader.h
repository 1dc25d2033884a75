// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "fleet/snapshot/data_position.h"
#include "fleet/snapshot/snapshot_contents.h"
#include "fleet/train/distributed_optimizer.h"

namespace fleet {

/// Loads the newest complete snapshot of `dir` into a training, and returns its step; nothing
/// when there is none at all. One that any rank finds damaged is named in the log, and the one
/// before it is tried; when none is left it is an Error, and so is one of another model. All ranks
/// call it.
///
/// The names of `contents` must be those of the snapshot.
///
/// With as many ranks as wrote it each gets its own state back. With another number all get rank
/// 0's, with local SGD the last average; ranks that are new get random numbers of their own, and
/// the data resume after as many samples.
std::optional<int64_t> load_snapshot(const std::filesystem::path& dir,
                                     const SnapshotContents& contents);
std::optional<int64_t> load_snapshot(const std::filesystem::path& dir,
                                     DistributedOptimizer& optimizer,
                                     const DataPosition& data = {});

}  // namespace fleet
