// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/host_copy.h"

#include <ATen/Context.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "fleet/memory/tape/tensor_storage.h"

namespace fleet::memory {
namespace {

// A stream that waits for the work of the current stream so far.
c10::Stream side_stream(const torch::Device& device) {
  const c10::impl::VirtualGuardImpl streams(device.type());
  const auto side = streams.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  c10::Event now(device.type());
  now.record(streams.getStream(device));
  now.block(side);
  return side;
}

// The allocator of the device must not reuse these bytes before the stream is done.
void record_stream(const c10::Stream& stream, const torch::Tensor& bytes) {
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(bytes.storage().data_ptr(), stream);
}

void copy(const torch::Tensor& to, const torch::Tensor& from, const c10::Stream& stream,
          std::optional<c10::Event>& done) {
  const c10::StreamGuard guard(stream);
  to.copy_(from, /*non_blocking=*/true);
  done.emplace(stream.device_type());
  done->record(stream);
}

}  // namespace

HostCopy::HostCopy(const c10::Storage& storage) : device_(storage.device()) {
  const auto bytes = bytes_of(storage);
  host_ = torch::empty(
      bytes.sizes(),
      torch::TensorOptions(torch::kByte).pinned_memory(device_.is_cuda() && at::hasCUDA()));
  if (device_.is_cpu()) {
    host_.copy_(bytes);
    return;
  }
  stream_ = side_stream(device_);
  copy(host_, bytes, *stream_, offloaded_);
  record_stream(*stream_, bytes);
}

void HostCopy::prefetch() {
  if (fetched_.defined()) return;
  fetched_ = torch::empty(host_.sizes(), torch::TensorOptions(torch::kByte).device(device_));
  if (!stream_) {
    fetched_.copy_(host_);
    return;
  }
  stream_ = side_stream(device_);
  offloaded_->block(*stream_);
  copy(fetched_, host_, *stream_, arrived_);
  record_stream(*stream_, fetched_);
}

c10::Storage HostCopy::fetch() {
  prefetch();
  if (arrived_) arrived_->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return fetched_.storage();
}

}  // namespace fleet::memory
