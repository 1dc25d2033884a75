// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <torch/types.h>

namespace fleet::memory {

/// A replay input whose elements are all the same, such as the result of `zeros_like` or
/// `full_like`: one element is kept instead of the tensor. Since a factory's result may be filled
/// past the dispatcher, it is known by its bytes and not by the op that made it.
class ConstantInput {
 public:
  /// Of a dense CPU tensor of at least `kLeast` bytes; null if its elements differ. Reads it up to
  /// the first that does.
  static std::shared_ptr<const ConstantInput> of(const torch::Tensor& tensor);
  static constexpr size_t kLeast = 4096;

  /// What the tensor counts.
  int64_t bytes() const { return bytes_; }
  /// Anew, with the same strides.
  torch::Tensor tensor() const;

 private:
  ConstantInput() = default;

  std::vector<int64_t> sizes_, strides_;
  torch::TensorOptions options_;
  std::vector<char> element_;
  int64_t bytes_ = 0;
};

}  // namespace fleet::memory
