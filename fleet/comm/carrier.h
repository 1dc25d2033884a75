#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "fleet/comm/communicator.h"
#include "fleet/comm/pending_state.h"

namespace fleet::comm {

/// What the ranks of a group do together. All of a call's tensors are exchanged over the same
/// ranks.
struct Call {
  enum class Kind { kReduce, kBroadcast, kGather, kMeet };

  Kind kind = Kind::kMeet;
  std::vector<torch::Tensor> tensors = {};  // kGather: this rank's row, and all rows
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
};

/// Carries out a communicator's calls: by the engine, or by a group that survives its ranks.
class Carrier {
 public:
  virtual ~Carrier() = default;

  /// A call that `launch` starts, once an error would know what it is; null: there is nothing to
  /// wait for.
  virtual std::unique_ptr<Pending::State> prepare(Call call) = 0;
  /// Those who took part in the last call that was waited for.
  virtual std::vector<int> present() const = 0;
  /// Its name, the same on all ranks and of no other group.
  virtual const std::string& group() const = 0;
  /// The same ranks, whose calls have an order of their own.
  virtual std::shared_ptr<Carrier> duplicate(const std::string& name) = 0;
};

}  // namespace fleet::comm
