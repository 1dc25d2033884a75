#pragma once

#include <optional>

#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <torch/types.h>

namespace fleet::memory {

/// Bytes of a device in the memory of its host, pinned where that makes copies run beside compute:
/// out and back on a stream of their own, in order with the stream on which they are made and used.
///
///   HostCopy copy(storage);     // starts; the device's memory is free once it is done
///   copy.prefetch();            // starts back
///   auto storage = copy.fetch();
class HostCopy {
 public:
  /// Nobody may write to `storage` any more.
  explicit HostCopy(const c10::Storage& storage);

  void prefetch();
  /// Throws c10::OutOfMemoryError.
  c10::Storage fetch();

 private:
  torch::Tensor host_;  // bytes
  torch::Tensor back_;  // on the device, once asked for
  torch::Device device_;
  std::optional<c10::Stream> stream_;         // none: copies are done when they return
  std::optional<c10::Event> left_, arrived_;  // on it
};

}  // namespace fleet::memory
