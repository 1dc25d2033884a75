// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <torch/types.h>

namespace fleet::memory {

/// Bytes of a device in the host's memory, pinned where that lets copies overlap with compute. Both
/// copies run on a side stream, ordered with the stream on which the bytes are made and used.
///
///   HostCopy copy(storage);     // starts; the device's memory is free once it is done
///   copy.prefetch();            // starts the copy back
///   auto storage = copy.fetch();
class HostCopy {
 public:
  /// `storage` must not be written to any more.
  explicit HostCopy(const c10::Storage& storage);

  void prefetch();
  /// Throws c10::OutOfMemoryError.
  c10::Storage fetch();

 private:
  torch::Tensor host_;     // bytes
  torch::Tensor fetched_;  // on the device
  torch::Device device_;
  std::optional<c10::Stream> stream_;              // none: copies are done when they return
  std::optional<c10::Event> offloaded_, arrived_;  // on it
};

}  // namespace fleet::memory
