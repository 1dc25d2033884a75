#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include <c10/core/Storage.h>

#include "fleet/memory/offload_file.h"

namespace fleet::memory {

/// Memory of a forward that waits in a file for its backward. All values that lie in it share one.
class AwayMemory {
 public:
  /// Queues the bytes of `storage`, to which nobody writes any more.
  AwayMemory(std::shared_ptr<OffloadFile> file, const c10::Storage& storage);

  /// Starts to bring it back; what goes wrong is for `fetch` to tell.
  void prefetch() noexcept;
  /// The bytes, which stay from now on for as long as this object. Throws Error for the disk,
  /// c10::OutOfMemoryError for memory.
  c10::Storage fetch();

 private:
  std::shared_ptr<OffloadFile> file_;
  OffloadFile::Ticket ticket_;
  c10::Storage here_;
  std::mutex mutex_;
};

/// What a forward sends out, and where: values that crossed a cut, once the segment that read them
/// has ended and nobody but the tape holds them. What the last segments need stays.
///
///   Offload offload(std::make_shared<OffloadFile>());
///   TapeScope scope(policy, &offload);
struct Offload {
  explicit Offload(std::shared_ptr<OffloadFile> to) : file(std::move(to)) {}

  std::shared_ptr<OffloadFile> file;
  int64_t min_bytes = 1024 * 1024;           // smaller ones stay
  int64_t max_queued = int64_t{256} << 20U;  // a forward that outruns the disk by more waits

  bool takes(const c10::StorageImpl& storage) const {
    return storage.device_type() == c10::DeviceType::CPU &&
           static_cast<int64_t>(storage.nbytes()) >= min_bytes;
  }
};

}  // namespace fleet::memory
