// SPDX-License-Identifier: Apache-2.0
#include "fleet/comm/transport/shared_memory/peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "fleet/comm/rendezvous/peer_watch.h"
#include "fleet/core/process/descriptor.h"
#include "fleet/core/process/environment.h"
#include "fleet/core/process/process_state.h"
#include "fleet/core/text/format.h"

namespace fleet::comm {
namespace {

constexpr int64_t kPageBytes = 4096;

bool are_on_one_machine(const PeerWatch* watch, int size) {
  if (watch == nullptr || static_cast<int>(watch->peers().size()) != size) return false;
  const auto& peers = watch->peers();
  return std::all_of(peers.begin(), peers.end(),
                     [&](const PeerIdentity& peer) { return peer.host_id == peers[0].host_id; });
}

char* map_file(const Descriptor& file, int64_t length) {
  if (file.get() < 0) return nullptr;
  void* memory = ::mmap(nullptr, static_cast<size_t>(length), PROT_READ | PROT_WRITE, MAP_SHARED,
                        file.get(), 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

}  // namespace

PeerMemory::PeerMemory(PeerMemory&&) noexcept = default;

PeerMemory::~PeerMemory() {
  for (char* block : blocks_) ::munmap(block, static_cast<size_t>(length_));
}

bool PeerMemory::has_ended(int rank) const {
  const auto& process = processes_[static_cast<size_t>(rank)];
  const auto now = process_state(process.pid);
  return now.has_ended() || now.started != process.started;
}

bool is_shared_memory_wanted() {
  return environment_switch("FLEET_SHARED_MEMORY", true,
                            "0: ranks of one machine use sockets; 1, or unset: shared memory");
}

std::optional<PeerMemory> PeerMemory::map(const PeerWatch* watch, int size, int64_t bytes,
                                          const Gather& gather) {
  const bool is_wanted = is_shared_memory_wanted();
  bool possible = is_wanted && are_on_one_machine(watch, size);
  // Every rank takes part in both calls below, even if it cannot share memory: the result must be
  // the same on all.
  PeerMemory memory((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
  Descriptor own(possible ? ::memfd_create("fleet", MFD_CLOEXEC) : -1);
  if (own.get() >= 0 && ::ftruncate(own.get(), memory.length_) != 0) own = Descriptor();
  const auto offers = gather(torch::tensor(
      {static_cast<int64_t>(own.get()), static_cast<int64_t>(::getpid()), memory.length_},
      torch::kLong));
  for (int peer = 0; possible && peer < size; ++peer) {
    const auto* const offer = offers[peer].const_data_ptr<int64_t>();
    char* block = nullptr;
    if (offer[0] >= 0 && offer[2] == memory.length_) {
      block = map_file(Descriptor(::open(format("/proc/{}/fd/{}", offer[1], offer[0]).c_str(),
                                         O_RDWR | O_CLOEXEC)),
                       memory.length_);
    }
    possible = block != nullptr;
    if (!possible) break;
    memory.blocks_.push_back(block);
    const auto pid = static_cast<int>(offer[1]);
    memory.processes_.push_back({pid, process_state(pid).started});
  }
  const auto answers = gather(torch::full({1}, possible ? 1 : 0, torch::kLong));
  if (!answers.all().item<bool>()) return std::nullopt;
  return memory;
}

}  // namespace fleet::comm
