#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/types.h>

namespace fleet::memory {

/// A dropout mask, which holds zeros and one other number, as a bit per element. Of a meta tensor
/// it has the size alone.
class MaskBits {
 public:
  /// Empty when the tensor holds anything else, or is not contiguous.
  static std::optional<MaskBits> of(const torch::Tensor& mask);
  /// The very same tensor again.
  torch::Tensor mask() const;
  int64_t bytes() const { return static_cast<int64_t>(bits_.numel()); }

 private:
  torch::Tensor bits_;  // counted like any other tensor
  uint32_t pattern_ = 0;
  std::vector<int64_t> sizes_;
  torch::TensorOptions options_;
};

}  // namespace fleet::memory
