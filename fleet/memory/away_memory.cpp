#include "fleet/memory/away_memory.h"

#include <torch/types.h>

#include "fleet/core/torch_compat.h"

namespace fleet::memory {
namespace {

torch::Tensor bytes_of(const c10::Storage& storage) {
  const compat::NoInterceptScope engine;
  const torch::NoGradGuard no_grad;
  return torch::empty({0}, torch::kByte)
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

}  // namespace

void AwayWave::prefetch() noexcept {
  for (auto member = members.rbegin(); member != members.rend(); ++member) {
    if (const auto away = member->lock()) away->prefetch();
  }
}

AwayMemory::AwayMemory(std::shared_ptr<OffloadFile> file, std::shared_ptr<AwayWave> wave,
                       const c10::Storage& storage)
    : file_(std::move(file)), wave_(std::move(wave)), ticket_(file_->write(bytes_of(storage))) {}

void AwayMemory::prefetch() noexcept {
  try {
    const std::scoped_lock lock(mutex_);
    const compat::NoInterceptScope engine;
    if (!here_) file_->prefetch(ticket_);
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

c10::Storage AwayMemory::fetch() {
  const std::scoped_lock lock(mutex_);
  const compat::NoInterceptScope engine;
  if (!here_) {
    here_ = file_->read(ticket_).storage();
    ticket_ = {};
    // Only now, so that it takes no memory that this one needs.
    if (!wave_->is_asked_for.exchange(true) && wave_->before) wave_->before->prefetch();
  }
  return here_;
}

}  // namespace fleet::memory
