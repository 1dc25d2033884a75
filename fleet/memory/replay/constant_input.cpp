// SPDX-License-Identifier: Apache-2.0
#include "fleet/memory/replay/constant_input.h"

#include <algorithm>
#include <cstring>

#include "fleet/core/tensor_memory.h"
#include "fleet/memory/allocator/memory_counter.h"

namespace fleet::memory {

std::shared_ptr<const ConstantInput> ConstantInput::of(const torch::Tensor& tensor) {
  if (!compat::is_strided(tensor) || !tensor.device().is_cpu() || tensor.is_conj() ||
      tensor.is_neg() || tensor.nbytes() < kLeast || !tensor.is_non_overlapping_and_dense()) {
    return nullptr;
  }
  // Dense: its elements lie one behind the other, in some order.
  const auto* const data = static_cast<const char*>(tensor.const_data_ptr());
  const auto size = tensor.element_size();
  if (std::memcmp(data, data + size, tensor.nbytes() - size) != 0) return nullptr;
  const std::shared_ptr<ConstantInput> constant(new ConstantInput());
  constant->sizes_ = tensor.sizes().vec();
  constant->strides_ = tensor.strides().vec();
  constant->options_ = tensor.options();
  constant->bytes_ = counted_bytes(tensor.nbytes());
  constant->element_.assign(data, data + size);
  return constant;
}

torch::Tensor ConstantInput::tensor() const {
  auto result = torch::empty_strided(sizes_, strides_, options_);
  auto* const data = static_cast<char*>(result.mutable_data_ptr());
  const auto bytes = result.nbytes();
  auto filled = element_.size();
  std::memcpy(data, element_.data(), filled);
  while (filled < bytes) {
    const auto next = std::min(filled, bytes - filled);
    std::memcpy(data + filled, data, next);
    filled += next;
  }
  return result;
}

}  // namespace fleet::memory
