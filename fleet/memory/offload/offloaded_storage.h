// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include <c10/core/Storage.h>

#include "fleet/memory/offload/host_copy.h"
#include "fleet/memory/offload/offload_file.h"

namespace fleet::memory {

class OffloadedStorage;

/// What was offloaded at one cut. The first fetch from it prefetches what was offloaded one cut
/// earlier, so that it is resident when backward needs it.
struct OffloadWave {
  std::vector<std::weak_ptr<OffloadedStorage>> members;
  std::shared_ptr<OffloadWave> before;
  std::atomic<bool> is_fetched = false;

  /// Backward needs last what was made first.
  void prefetch() noexcept;
};

/// A storage of a forward that is offloaded until its backward: from the CPU to a file, from a
/// device to the host's memory. All values of the storage share one.
class OffloadedStorage {
 public:
  /// Queues the bytes of `storage`, which must not be written to any more.
  OffloadedStorage(std::shared_ptr<OffloadFile> file, std::shared_ptr<OffloadWave> wave,
                   const c10::Storage& storage);

  /// Starts to fetch it; errors are thrown by `fetch`.
  void prefetch() noexcept;
  /// The bytes, which stay resident for as long as this object. Throws Error for the disk,
  /// c10::OutOfMemoryError for memory.
  c10::Storage fetch();

 private:
  struct InFile {
    std::shared_ptr<OffloadFile> file;
    OffloadFile::Ticket ticket;
  };

  std::shared_ptr<OffloadWave> wave_;
  std::variant<InFile, HostCopy> place_;
  c10::Storage resident_;
  std::mutex mutex_;
};

/// What a forward offloads, and where: values that cross a cut, once the segment that read them has
/// ended and only the tape holds them, and all of a segment that is kept, if the policy says so.
/// What the last segments need stays.
///
///   Offload offload(std::make_shared<OffloadFile>());
///   TapeScope scope(policy, &offload);
struct Offload {
  explicit Offload(std::shared_ptr<OffloadFile> to) : file(std::move(to)) {}

  static constexpr int64_t kMinBytes = int64_t{1} << 20;

  std::shared_ptr<OffloadFile> file;         // null: all to the host's memory
  int64_t min_bytes = kMinBytes;             // smaller storages stay
  int64_t max_queued = int64_t{256} << 20U;  // a forward that is further ahead of the disk waits
  bool is_synchronous = false;               // until all is on disk, so that memory can be measured
  mutable int64_t largest_small = 0;  // bytes of the largest storage that stayed for its size

  bool should_offload(const c10::StorageImpl& storage) const {
    return storage.device_type() != c10::DeviceType::Meta &&
           static_cast<int64_t>(storage.nbytes()) >= min_bytes;
  }
  std::shared_ptr<OffloadedStorage> offload(const c10::Storage& storage,
                                            const std::shared_ptr<OffloadWave>& wave) const;
  /// Waits until at most `queued_bytes` are left to be written.
  void drain(int64_t queued_bytes) const;
};

}  // namespace fleet::memory
