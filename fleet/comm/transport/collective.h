// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"

namespace fleet::comm {

/// One collective of a group. All of its tensors are exchanged among the same ranks, so an elastic
/// group can repeat it as a unit.
struct Collective {
  enum class Kind {
    kAllReduce,
    kBroadcast,
    kAllGather,  // tensors: this rank's row, then the table of all rows
    kBarrier,
    kAdmit  // elastic groups only: which slots have a new process that asks to join
  };

  Kind kind = Kind::kBarrier;
  std::vector<torch::Tensor> tensors = {};
  ReduceOp op = ReduceOp::kSum;
  int root = -1;  // of a broadcast; elastic, and -1 or a lost rank: the lowest rank that is not new
  std::string what = {};  // for messages; equal on all ranks of an elastic group
};

}  // namespace fleet::comm
