// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace fleet {

/// For a run that resumes with another global batch (batch_size x ranks) than it was saved with:
/// which batch size keeps it on `world_size` ranks, or, where none does, which other numbers of
/// ranks could.
///
///   global_batch_advice(128, 4);   // "use --batch_size 32: 32 x 4 ranks keep the global batch
///   ..."
std::string global_batch_advice(int64_t global_batch, int64_t world_size);

}  // namespace fleet
