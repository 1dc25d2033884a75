// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

namespace fleet::memory {

/// A dropout mask, which holds zeros and one other number, as one bit per element. Of a meta tensor
/// it has only the size.
class MaskBits {
 public:
  /// Empty if the tensor holds anything else, or is not contiguous.
  static std::optional<MaskBits> of(const torch::Tensor& mask);
  /// Whether masks of this layout and type can be kept so.
  static bool can_hold(const torch::Tensor& mask);
  /// The tensor again, bit for bit.
  torch::Tensor mask() const;
  /// What the replay of a dropout takes for each byte of its mask: to unpack the bits, and to
  /// multiply. Measured once, for masks of float.
  static double seconds_per_byte();
  int64_t bytes() const { return static_cast<int64_t>(bits_.numel()); }

 private:
  torch::Tensor bits_;  // counted like any other tensor
  uint32_t pattern_ = 0;
  std::vector<int64_t> sizes_;
  torch::TensorOptions options_;
};

}  // namespace fleet::memory
