// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <torch/types.h>

namespace fleet::comm {

class PeerWatch;

/// What FLEET_SHARED_MEMORY says; UsageError for anything but 0 and 1.
bool is_shared_memory_wanted();

/// A block of shared memory of every rank of one machine, mapped into this process. The blocks have
/// no name in any file system (memfd): they are freed with the last process that maps them, however
/// it ends.
///
///   auto memory = PeerMemory::map(watch, size, bytes, gather);   // on all ranks, or on none
///   std::memcpy(memory->of(rank), message, length);
class PeerMemory {
 public:
  /// Collects one row of int64 from every rank, [size, n].
  using Gather = std::function<torch::Tensor(const torch::Tensor& row)>;

  /// All ranks must call it; `gather` is called twice. Nothing, on all of them, when they are not
  /// on one machine, may not open each other's memory, or FLEET_SHARED_MEMORY=0.
  static std::optional<PeerMemory> map(const PeerWatch* watch, int size, int64_t bytes,
                                       const Gather& gather);
  ~PeerMemory();
  PeerMemory(PeerMemory&&) noexcept;
  PeerMemory& operator=(PeerMemory&&) = delete;

  int size() const { return static_cast<int>(blocks_.size()); }
  /// Zeroed at first, page-aligned.
  char* of(int rank) const { return blocks_[static_cast<size_t>(rank)]; }
  /// Whether the process of a rank has ended, by /proc: for now and then while waiting.
  bool has_ended(int rank) const;

 private:
  struct Process {
    int pid = 0;
    uint64_t started = 0;  // tells it from a later one with the same number
  };
  explicit PeerMemory(int64_t length) : length_(length) {}

  int64_t length_;
  std::vector<char*> blocks_;  // by rank
  std::vector<Process> processes_;
};

}  // namespace fleet::comm
