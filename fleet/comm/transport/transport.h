// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fleet/comm/communicator.h"
#include "fleet/comm/transport/collective.h"
#include "fleet/comm/transport/work_state.h"

namespace fleet::comm {

/// Carries out a communicator's collectives: by LibTorch's process group, or by an elastic group.
class Transport {
 public:
  virtual ~Transport() = default;

  /// A call that `launch` starts, after `Communicator::begin` has described it; null: already
  /// complete.
  virtual std::unique_ptr<Work::State> prepare(Collective call) = 0;
  /// The ranks that took part in the last completed call.
  virtual std::vector<int> present() const = 0;
  /// A unique name of the group, equal on all ranks.
  virtual const std::string& group() const = 0;
  /// The same ranks; calls of the two are not ordered relative to each other.
  virtual std::shared_ptr<Transport> duplicate(const std::string& name) = 0;
};

}  // namespace fleet::comm
