#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include <c10/core/Storage.h>

#include "fleet/memory/host_copy.h"
#include "fleet/memory/offload_file.h"

namespace fleet::memory {

class AwayMemory;

/// What left at one cut. The first who asks for some of it has what left one cut earlier brought
/// back, so that it is there when backward arrives.
struct AwayWave {
  std::vector<std::weak_ptr<AwayMemory>> members;
  std::shared_ptr<AwayWave> before;
  std::atomic<bool> is_asked_for = false;

  /// Backward needs last what was made first.
  void prefetch() noexcept;
};

/// Memory of a forward that waits for its backward: the CPU's in a file, that of a device with its
/// host. All values that lie in it share one.
class AwayMemory {
 public:
  /// Queues the bytes of `storage`, to which nobody writes any more.
  AwayMemory(std::shared_ptr<OffloadFile> file, std::shared_ptr<AwayWave> wave,
             const c10::Storage& storage);

  /// Starts to bring it back; what goes wrong is for `fetch` to tell.
  void prefetch() noexcept;
  /// The bytes, which stay from now on for as long as this object. Throws Error for the disk,
  /// c10::OutOfMemoryError for memory.
  c10::Storage fetch();

 private:
  struct InFile {
    std::shared_ptr<OffloadFile> file;
    OffloadFile::Ticket ticket;
  };

  std::shared_ptr<AwayWave> wave_;
  std::variant<InFile, HostCopy> place_;
  c10::Storage here_;
  std::mutex mutex_;
};

/// What a forward sends out, and where: values that crossed a cut, once the segment that read them
/// has ended and nobody but the tape holds them, and all of a segment that is kept, if the policy
/// says so. What the last segments need stays.
///
///   Offload offload(std::make_shared<OffloadFile>());
///   TapeScope scope(policy, &offload);
struct Offload {
  explicit Offload(std::shared_ptr<OffloadFile> to) : file(std::move(to)) {}

  static constexpr int64_t kMinBytes = int64_t{1} << 20;

  std::shared_ptr<OffloadFile> file;         // null: all to the host's memory
  int64_t min_bytes = kMinBytes;             // smaller ones stay
  int64_t max_queued = int64_t{256} << 20U;  // a forward that outruns the disk by more waits
  bool waits = false;                        // until all is on disk, so that memory can be measured
  mutable int64_t largest_small = 0;         // bytes of the largest that stayed for its size

  bool takes(const c10::StorageImpl& storage) const {
    return storage.device_type() != c10::DeviceType::Meta &&
           static_cast<int64_t>(storage.nbytes()) >= min_bytes;
  }
  std::shared_ptr<AwayMemory> send(const c10::Storage& storage,
                                   const std::shared_ptr<AwayWave>& wave) const;
  /// Waits until no more than that is left to be written.
  void drain(int64_t queued_bytes) const;
};

}  // namespace fleet::memory
