// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/shared_memory/shared_memory_transport.h"

#include "fleet/comm/rendezvous/peer_watch.h"

namespace fleet::comm {

struct SharedMemoryTransport::SharedCall : Work::State {
  SharedCall(Collective call, std::shared_ptr<SharedCalls> calls)
      : call(std::move(call)), calls(std::move(calls)) {}

  void launch() override {
    deadline = SharedCalls::Clock::now() + timeout;
    call_number = calls->start(std::move(call), deadline, [this] { log_wait_if_due(); });
  }
  void block() override {
    calls->wait(call_number, deadline, [this] { log_wait_if_due(); });
  }
  bool is_done() const override { return calls->is_complete(call_number); }

  Collective call;
  std::shared_ptr<SharedCalls> calls;
  uint32_t call_number = 0;
  SharedCalls::Clock::time_point deadline;
};

SharedMemoryTransport::SharedMemoryTransport(std::shared_ptr<ProcessGroupTransport> group,
                                             PeerMemory memory)
    : group_(std::move(group)),
      calls_(std::make_shared<SharedCalls>(std::move(memory), group_->rank())) {}

std::shared_ptr<Transport> SharedMemoryTransport::over(
    std::shared_ptr<ProcessGroupTransport> group) {
  if (group->options().backend != "gloo") return group;  // its tensors are not on the CPU
  auto memory =
      PeerMemory::map(group->watch().get(), group->size(), SharedCalls::memory_bytes(),
                      [&](const torch::Tensor& row) { return group->gather_during_setup(row); });
  if (!memory) return group;
  return std::shared_ptr<Transport>(
      new SharedMemoryTransport(std::move(group), std::move(*memory)));
}

std::unique_ptr<Work::State> SharedMemoryTransport::prepare(Collective call) {
  if (!SharedCalls::accepts(call)) return group_->prepare(std::move(call));
  return std::make_unique<SharedCall>(std::move(call), calls_);
}

std::shared_ptr<Transport> SharedMemoryTransport::duplicate(const std::string& name) {
  return over(group_->duplicate_group(name));
}

}  // namespace fleet::comm
