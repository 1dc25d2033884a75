// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/offload/offloaded_storage.h"

#include <torch/types.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/torch/interception.h"
#include "fleet/memory/tape/tensor_storage.h"

namespace fleet::memory {

void OffloadWave::prefetch() noexcept {
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    if (const auto offloaded = member->lock()) offloaded->prefetch();
  }
}

OffloadedStorage::OffloadedStorage(std::shared_ptr<OffloadFile> file,
                                   std::shared_ptr<OffloadWave> wave, const c10::Storage& storage)
    : wave_(std::move(wave)), place_(InFile{}) {
  if (file && storage.device().is_cpu()) {
    auto ticket = file->write(bytes_of(storage));
    place_ = InFile{std::move(file), std::move(ticket)};
  } else {
    const compat::NoInterceptScope no_intercept;
    const torch::NoGradGuard no_grad;
    place_.emplace<HostCopy>(storage);
  }
}

void OffloadedStorage::prefetch() noexcept {
  const AllocationTag tag(allocation::kFetched);
  try {
    const std::scoped_lock lock(mutex_);
    const compat::NoInterceptScope no_intercept;
    const torch::NoGradGuard no_grad;
    if (resident_) return;
    if (const auto* in_file = std::get_if<InFile>(&place_)) {
      in_file->file->prefetch(in_file->ticket);
    } else {
      std::get<HostCopy>(place_).prefetch();
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

c10::Storage OffloadedStorage::fetch() {
  const AllocationTag tag(allocation::kFetched);
  const std::scoped_lock lock(mutex_);
  const compat::NoInterceptScope no_intercept;
  const torch::NoGradGuard no_grad;
  if (resident_) return resident_;
  if (auto* in_file = std::get_if<InFile>(&place_)) {
    resident_ = in_file->file->read(in_file->ticket).storage();
  } else {
    resident_ = std::get<HostCopy>(place_).fetch();
  }
  place_ = InFile{};  // frees the file's extent or the host's copy
  // Only now, so that it takes no memory that this fetch needs.
  if (!wave_->is_fetched.exchange(true) && wave_->before) wave_->before->prefetch();
  return resident_;
}

std::shared_ptr<OffloadedStorage> Offload::offload(const c10::Storage& storage,
                                                   const std::shared_ptr<OffloadWave>& wave) const {
  auto offloaded = std::make_shared<OffloadedStorage>(file, wave, storage);
  wave->members.push_back(offloaded);
  return offloaded;
}

void Offload::drain(int64_t queued_bytes) const {
  if (file) file->drain(queued_bytes);
}

}  // namespace fleet::memory
