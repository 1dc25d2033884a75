// SPDX-License-Identifier: Apache-2.0
#include "fleet/precision/buffer_backup.h"

#include "fleet/core/allocation_tag.h"

namespace fleet::precision {

BufferBackup::BufferBackup(const ModelHandle& model) {
  const AllocationTag tag(allocation::kBufferBackup);
  for (const auto& [name, buffer] : model.buffers()) {
    buffers_.push_back(buffer);
    saved_.push_back(buffer.detach().clone());
  }
}

void BufferBackup::save() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) saved_[i].copy_(buffers_[i]);
}

void BufferBackup::restore() {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(saved_[i]);
}

}  // namespace fleet::precision
