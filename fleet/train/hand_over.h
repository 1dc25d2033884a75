#pragma once

#include <cstdint>
#include <string_view>

#include "fleet/comm/communicator.h"
#include "fleet/train/data_position.h"
#include "fleet/train/distributed_optimizer.h"

namespace fleet {

enum class HandOverSide { kGives, kTakes };

/// Gives ranks that have come back to an elastic group what the others have: parameters, buffers,
/// the optimizer's and local SGD's state, counters, the position in the data, and when the last
/// snapshot was. Momentum is that of the lowest old rank; random numbers are of their own.
///
/// All ranks call it after the same average, the old ones after `ElasticGroup::admit`, the new ones
/// after `join`.
///
///   if (!group.admit().empty()) hand_over(optimizer, data, last_step, HandOverSide::kGives);
void hand_over(DistributedOptimizer& optimizer, const DataPosition& data, int64_t& last_step,
               HandOverSide side);

/// Throws RestartNeeded when a rank is lost `when` the others cannot go on without it.
void check_all_present(const comm::Communicator& comm, std::string_view when);

}  // namespace fleet
