#include "fleet/memory/host_copy.h"

#include <ATen/Context.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "fleet/memory/tensor_storage.h"

namespace fleet::memory {
namespace {

// One that waits for what the current stream has been given so far.
c10::Stream side_stream(const torch::Device& device) {
  const c10::impl::VirtualGuardImpl streams(device.type());
  const auto side = streams.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  c10::Event now(device.type());
  now.record(streams.getStream(device));
  now.block(side);
  return side;
}

// The allocator of the device must not give these bytes to others before the stream is done.
void hold_for(const c10::Stream& stream, const torch::Tensor& bytes) {
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
  copy(host_, bytes, *stream_, left_);
  hold_for(*stream_, bytes);
}

void HostCopy::prefetch() {
  if (back_.defined()) return;
  back_ = torch::empty(host_.sizes(), torch::TensorOptions(torch::kByte).device(device_));
  if (!stream_) {
    back_.copy_(host_);
    return;
  }
  stream_ = side_stream(device_);
  left_->block(*stream_);
  copy(back_, host_, *stream_, arrived_);
  hold_for(*stream_, back_);
}

c10::Storage HostCopy::fetch() {
  prefetch();
  if (arrived_) arrived_->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return back_.storage();
}

}  // namespace fleet::memory
