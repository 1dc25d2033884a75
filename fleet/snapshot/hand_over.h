// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "fleet/comm/communicator.h"
#include "fleet/snapshot/snapshot_contents.h"

namespace fleet {

enum class HandOverSide { kSender, kReceiver };

/// Sends the training state to ranks that have rejoined an elastic group: parameters, buffers,
/// the optimizers' and local SGD's state, counters, the position in the data, own values, and when
/// the last snapshot was. Momentum and values are those of the lowest old rank; random numbers are
/// of their own.
///
/// All ranks call it after the same average, the old ones after `ElasticGroup::admit`, the new ones
/// after `join`.
///
///   if (!group.admit().empty()) hand_over(contents, last_step, HandOverSide::kSender);
void hand_over(const SnapshotContents& contents, int64_t& last_step, HandOverSide side);

/// Throws when there are tensors among the own values, whose shapes a new rank does not know.
void check_can_hand_over(const SnapshotContents& contents);

/// Throws RestartNeeded when a rank is lost `when` the others cannot continue without it.
void check_all_present(const comm::Communicator& comm, std::string_view when);

}  // namespace fleet
