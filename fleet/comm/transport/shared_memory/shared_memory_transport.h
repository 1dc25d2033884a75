// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fleet/comm/transport/process_group_transport.h"
#include "fleet/comm/transport/shared_memory/shared_calls.h"
#include "fleet/comm/transport/transport.h"

namespace fleet::comm {

/// A group whose ranks are on one machine: small collectives go through shared memory
/// (SharedCalls), the others through LibTorch's process group. Which way a call goes depends on its
/// size alone, so all ranks go the same way.
class SharedMemoryTransport : public Transport {
 public:
  /// All ranks must call it. `group` itself where the ranks cannot share memory.
  static std::shared_ptr<Transport> over(std::shared_ptr<ProcessGroupTransport> group);

  std::unique_ptr<Work::State> prepare(Collective call) override;
  std::vector<int> present() const override { return group_->present(); }
  const std::string& group() const override { return group_->group(); }
  std::shared_ptr<Transport> duplicate(const std::string& name) override;

 private:
  struct SharedCall;
  SharedMemoryTransport(std::shared_ptr<ProcessGroupTransport> group, PeerMemory memory);

  std::shared_ptr<ProcessGroupTransport> group_;
  std::shared_ptr<SharedCalls> calls_;
};

}  // namespace fleet::comm
