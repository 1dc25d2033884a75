#include "fleet/memory/away_memory.h"

#include <torch/types.h>

#include "fleet/core/allocation_tag.h"
#include "fleet/core/torch_compat.h"
#include "fleet/memory/tensor_storage.h"

namespace fleet::memory {

void AwayWave::prefetch() noexcept {
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    if (const auto away = member->lock()) away->prefetch();
  }
}

AwayMemory::AwayMemory(std::shared_ptr<OffloadFile> file, std::shared_ptr<AwayWave> wave,
                       const c10::Storage& storage)
    : wave_(std::move(wave)), place_(InFile{}) {
  if (file && storage.device().is_cpu()) {
    auto ticket = file->write(bytes_of(storage));
    place_ = InFile{std::move(file), std::move(ticket)};
  } else {
    const compat::NoInterceptScope engine;
    const torch::NoGradGuard no_grad;
    place_.emplace<HostCopy>(storage);
  }
}

void AwayMemory::prefetch() noexcept {
  const AllocationTag tag(allocation::kFetched);
  try {
    const std::scoped_lock lock(mutex_);
    const compat::NoInterceptScope engine;
    const torch::NoGradGuard no_grad;
    if (here_) return;
    if (const auto* in_file = std::get_if<InFile>(&place_)) {
      in_file->file->prefetch(in_file->ticket);
    } else {
      std::get<HostCopy>(place_).prefetch();
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

c10::Storage AwayMemory::fetch() {
  const AllocationTag tag(allocation::kFetched);
  const std::scoped_lock lock(mutex_);
  const compat::NoInterceptScope engine;
  const torch::NoGradGuard no_grad;
  if (here_) return here_;
  if (auto* in_file = std::get_if<InFile>(&place_)) {
    here_ = in_file->file->read(in_file->ticket).storage();
  } else {
    here_ = std::get<HostCopy>(place_).fetch();
  }
  place_ = InFile{};  // what it held elsewhere goes
  // Only now, so that it takes no memory that this one needs.
  if (!wave_->is_asked_for.exchange(true) && wave_->before) wave_->before->prefetch();
  return here_;
}

std::shared_ptr<AwayMemory> Offload::send(const c10::Storage& storage,
                                          const std::shared_ptr<AwayWave>& wave) const {
  auto away = std::make_shared<AwayMemory>(file, wave, storage);
  wave->members.push_back(away);
  return away;
}

void Offload::drain(int64_t queued_bytes) const {
  if (file) file->drain(queued_bytes);
}

}  // namespace fleet::memory
